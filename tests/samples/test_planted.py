"""configs/curated.yaml finds the documents that are planted for curation."""

import json
from collections import Counter
from pathlib import Path

import pytest

from samples.corpora import main
from tests import ROOT
from tests.trainer.curating import Here, decide
from trainer.config.files import load_job
from trainer.config.jobs import PipelineJob
from trainer.data.decisions import open_decisions, read_decisions
from trainer.store.storage import Store

pytestmark = pytest.mark.deep

DUPLICATE = {"exact duplicate", "near duplicate"}


@pytest.fixture(scope="module")
def decided(tmp_path_factory: pytest.TempPathFactory) -> Counter[tuple[str, str]]:
    """How many documents of each planted kind were dropped for each reason."""
    folder = tmp_path_factory.mktemp("curated")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr("trainer.curation.curate.Workers", Here)
        assert main(["data/raw"]) == 0
        job = load_job(PipelineJob, str(ROOT / "configs" / "curated.yaml")).preparation()
        store, key = Store(job.store), decide(job).key
        names = ["kept", *read_decisions(store, key).details["reasons"]]
        reasons = [names[reason].split(":")[0] for reason in open_decisions(store, key, "planted").reasons]
        lines = Path("data/raw/planted/planted.jsonl").read_text(encoding="utf-8").splitlines()
    kinds = [json.loads(line)["planted"] for line in lines]
    return Counter(zip(kinds, reasons, strict=True))


def of(decided: Counter[tuple[str, str]], kind: str) -> dict[str, int]:
    return {reason: count for (found, reason), count in decided.items() if found == kind}


def test_of_originals_and_their_copies_one_stays(decided: Counter[tuple[str, str]]) -> None:
    kept = of(decided, "original")["kept"] + of(decided, "spaced").get("kept", 0)
    unique = 200 - sum(count for reason, count in of(decided, "original").items() if reason not in {"kept", *DUPLICATE})
    assert 100 < kept <= unique
    spaced = of(decided, "spaced")
    assert spaced["exact duplicate"] >= 15, "of those whose original comes first"
    assert set(spaced) <= {"kept", "gopher_repetition", "contaminated", *DUPLICATE}


def test_edited_copies_and_chains_are_near_duplicates(decided: Counter[tuple[str, str]]) -> None:
    for kind, least in (("edited", 15), ("chain", 5)):
        found = of(decided, kind)
        assert found.get("near duplicate", 0) >= least, (kind, found)


@pytest.mark.parametrize(
    ("kind", "reasons"),
    [
        ("test", {"contaminated", "gopher_repetition"}), ("foreign", {"language"}), ("repeated", {"gopher_repetition"}),
        ("short", {"length"}),
    ],
)  # fmt: skip
def test_junk_goes(decided: Counter[tuple[str, str]], kind: str, reasons: set[str]) -> None:
    assert set(of(decided, kind)) <= reasons
