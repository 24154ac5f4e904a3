"""Every causal family of `transformers`: what docs/families.md says of it is what happens."""

from pathlib import Path

import pytest
import transformers

from tests.families import Case, cases, try_family
from tests.family_table import read_table

FAST = {
    "gpt2", "llama", "olmo2", "opt", "gemma2", "cohere", "phi3", "glm", "smollm3", "mixtral", "deepseek_v3", "mamba",
    "bert",
    "roberta", "gemma3", "llama4_text", "marian", "afmoe",
}  # fmt: skip
"""Those that stand for the others in every run of the tests."""

VERSION, TABLE = read_table()
REMEDY = (
    f"docs/families.md was made with transformers {VERSION}, this is {transformers.__version__}: `python -m "
    "tests.family_table`"
)


def test_the_table_has_every_family_of_this_version_of_transformers() -> None:
    assert transformers.__version__ == VERSION, REMEDY
    assert sorted(TABLE) == sorted(case.name for case in cases()), REMEDY


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, id=case.name, marks=() if case.family in FAST else pytest.mark.long) for case in cases()],
)
def test_a_family_trains_or_is_refused_as_the_table_says(case: Case, tmp_path: Path) -> None:
    assert try_family(case, tmp_path) == TABLE.get(case.name), REMEDY


def test_what_trains_has_no_flaw() -> None:
    for name, verdict in TABLE.items():
        if not verdict.refused:
            assert (verdict.causal, verdict.learns, verdict.resumes) == ("yes", "yes", "yes"), name
            assert verdict.loss in ("equal", "equal, given shifted labels"), name
            assert verdict.routers in ("", "equal", "refused: transformers adds none"), name
