"""Why it would be decided anew which documents stay; what is foreseen is then made."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support import digests
from tests.trainer.curating import Here, curated_job, decide, prose, write_documents
from tests.trainer.made import prepare_tokenizer
from tests.trainer.preparing import stamps, write_old
from trainer.common.errors import ArtifactError
from trainer.common.progress import silent
from trainer.config.jobs import PrepareJob
from trainer.pipelines.explain import ExplainStages, ReadOnlyStore
from trainer.preflight.step_status import StepStatus

TEXTS = [" ".join(prose(number, 300)) for number in range(12)]
FUNCTION = "def is_long(text):\n    return len(text) > 3\n"


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("trainer.curation.curate.Workers", Here)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "own_filters", raising=False)  # of another test's folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Raw files, an evaluation set and a function, about which is decided."""
    for name, texts in {"a": TEXTS[:4], "b": TEXTS[4:8], "c": TEXTS[8:]}.items():
        write_documents(tmp_path / "raw" / f"{name}.jsonl", texts)
    (tmp_path / "eval.txt").write_text(" ".join(prose(100, 20)))
    (tmp_path / "own_filters.py").write_text(FUNCTION)
    decide(job_of(tmp_path))
    return tmp_path


def job_of(folder: Path, least_bytes: int = 50, **changes: Any) -> PrepareJob:
    curation = {
        "filters": [
            {"kind": "length", "least_bytes": least_bytes}, {"kind": "function", "function": "own_filters:is_long"},
        ],
        "decontaminate": {"files": [{"paths": [f"{folder}/eval*.txt"]}]},
        **changes.pop("curation", {}),
    }  # fmt: skip
    return curated_job(folder / "store", {"one": f"{folder}/raw/*.jsonl"}, curation, **changes)


def look_at(name: str, job: PrepareJob, **made: Any) -> StepStatus:
    looking = ExplainStages(ReadOnlyStore(job.store))
    looking.make(name, job, **made)
    (found,) = looking.stages
    return found


def look(job: PrepareJob) -> StepStatus:
    """What is foreseen, after making sure that the store is as it was."""
    store = Path(job.store)
    before = stamps(store), digests(store)
    found = look_at("curate", job)
    assert (stamps(store), digests(store)) == before
    return found


def add_file(folder: Path) -> None:
    write_documents(folder / "raw" / "d.jsonl", TEXTS[:1])
    (folder / "raw" / "a.jsonl").unlink()


CHANGES: dict[str, tuple[Callable[[Path], object], dict[str, Any], Callable[[Path], tuple[str, ...]]]] = {
    "a threshold": (
        lambda folder: None, {"least_bytes": 60}, lambda folder: ("data.curation.filters.length.least_bytes: 50 -> 60",)
    ),
    "an option": (
        lambda folder: None, {"curation": {"exact": None}},
        lambda folder: ("data.curation.exact: {'normalise': ['unicode', 'space']} -> None",),
    ),
    "how raw files are cut": (
        lambda folder: None, {"shards": {"num_shards": 2, "piece_bytes": 1024}},
        lambda folder: ("data.shards.piece_bytes: 4096 -> 1024",),
    ),
    "a raw file": (
        lambda folder: write_old(folder / "raw" / "b.jsonl", (folder / "raw" / "c.jsonl").read_text()), {},
        lambda folder: ("files: 1 changed (b.jsonl)",),
    ),
    "the raw files": (add_file, {}, lambda folder: ("files: 1 added (d.jsonl), 1 removed (a.jsonl)",)),
    "an evaluation file": (
        lambda folder: write_old(folder / "eval.txt", "other words that are not to be seen in training"), {},
        lambda folder: (f"files: 1 changed ({folder}/eval.txt, kept out)",),
    ),
    "the evaluation files": (
        lambda folder: write_old(folder / "eval-2.txt", "other words that are not to be seen in training"), {},
        lambda folder: (f"files: 1 added ({folder}/eval-2.txt, kept out)",),
    ),
    "a function": (
        lambda folder: (folder / "own_filters.py").write_text(f"{FUNCTION}# changed\n"), {},
        lambda folder: ("files: 1 changed (source of own_filters:is_long or one of its imports)",),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_what_changed_is_the_one_reason_and_what_is_foreseen_is_made(folder: Path, name: str) -> None:
    change, options, expected = CHANGES[name]
    assert look(job_of(folder)).verdict == "reused"
    change(folder)
    job = job_of(folder, **options)
    found = look(job)
    assert (found.verdict, found.reasons) == ("made", expected(folder))
    assert found.work.startswith("about ") and found.work.endswith(" of raw text")
    assert decide(job).key == found.key
    assert look(job).verdict == "reused"


def test_damage_is_named(folder: Path) -> None:
    (path,) = (folder / "store").glob("decisions/*/one.npz")
    path.write_bytes(path.read_bytes()[:-1])
    (reason,) = look(job_of(folder)).reasons
    assert reason.startswith("one.npz has ")


def test_the_list_of_pieces_of_others_that_is_damaged_is_told(folder: Path) -> None:
    (path,) = (folder / "store").glob("decisions/*/pieces.json")
    path.write_bytes(b"{}")
    with pytest.raises(ArtifactError, match=r"pieces\.json does not match its checksum"):
        look(job_of(folder, least_bytes=60))


@pytest.mark.parametrize(("tokenizer", "told"), [("bpe", True), ("other", False)])
def test_a_tokenizer_that_was_trained_before_curation_is_named(folder: Path, tokenizer: str, told: bool) -> None:
    job = job_of(folder)
    prepare_tokenizer(job.model_copy(update={"data": job.data.model_copy(update={"curation": None})}), silent())
    job = job_of(folder, tokenizer={"vocab_size": 300, "name": tokenizer})
    prepare_tokenizer(job, silent(), decide(job))
    found = look_at("tokenizer", job, decisions=None)
    assert found.verdict == "reused"
    assert bool(found.reasons) == told
    assert all("it was trained on all documents, before curation" in reason for reason in found.reasons)
