"""Results of trying every causal family of `transformers`: `python -m tests.family_table [FAMILY ...]`.

Without arguments it writes docs/families.md, which the tests compare.
"""

import sys
import tempfile
import warnings
from pathlib import Path

import torch
import transformers
from transformers import logging as transformers_logging

from tests import ROOT
from tests.families import Verdict, cases, try_family

TABLE = ROOT / "docs" / "families.md"


def read_table() -> tuple[str, dict[str, Verdict]]:
    """The version of transformers of the committed table, and its row for each case."""
    text = TABLE.read_text(encoding="utf-8")
    found: dict[str, Verdict] = {}
    for line in text.splitlines():
        cells = [cell.strip().replace("&#124;", "|") for cell in line.strip("|").split("|")]
        if line.startswith("| `"):
            name = cells[0].strip("`")
            found[name] = Verdict(refused=cells[1]) if len(cells) == 2 else Verdict("", *cells[1:])
    return text.split("transformers ", 1)[1].split("\n", 1)[0], found


def write_table(verdicts: dict[str, Verdict]) -> str:
    """The committed table."""
    trained = {name: verdict for name, verdict in verdicts.items() if not verdict.refused}
    refused = {name: verdict for name, verdict in verdicts.items() if verdict.refused}
    families = {name.split()[0] for name in verdicts}
    of_trained = {name.split()[0] for name in trained}
    lines = [
        f"# Causal families of transformers {transformers.__version__}", "",
        f"`python -m tests.family_table` generated this page: {len(of_trained)} of {len(families)} families train, "
        f"{len(families - of_trained)} are refused.", "",
        "Each family was tested at a tiny size through a job. *Causal*: later tokens do not change earlier logits. "
        "*Embeddings learn*: the embedding of each token changes within a few steps. *Loss*: headrace's loss equals "
        "the family's own in `transformers` to 1e-5; some families do not shift labels, and get shifted ones. "
        "*Routers*: the same with `output_router_logits`. *Resumes*: training continued from a checkpoint gives a "
        "model bit-identical to the uninterrupted one. Settings that a family needs follow its name.",
        "", "| Family | Causal | Embeddings learn | Loss | Routers | Resumes |", "|---|---|---|---|---|---|",
        *(f"| `{name}` | {' | '.join(verdict[1:])} |" for name, verdict in trained.items()),
        "", "## Refused", "", "| Family | Message |", "|---|---|",
        *(f"| `{name}` | {verdict.refused.replace('|', '&#124;')} |" for name, verdict in refused.items()),
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def main(families: list[str]) -> None:
    transformers_logging.set_verbosity_error()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    verdicts = {}
    for case in cases():
        if not families or case.family in families:
            with tempfile.TemporaryDirectory() as folder:
                verdicts[case.name] = try_family(case, Path(folder))
            print(case.name, *filter(None, verdicts[case.name]), sep=" | ", flush=True)
    if not families:
        TABLE.write_text(write_table(verdicts), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
