"""Decisions about raw text are kept with the artifacts built by them, and measures are kept with the decisions."""

import errno
import os
import shutil
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.curating import Here, curated_job, decide, prose, write_documents
from tests.trainer.made import prepare
from tests.trainer.report_runs import publish
from tests.trainer.results import a_result
from tests.trainer.stocked_store import OLD, add_decisions, add_run, add_shards, found, keys
from trainer.common.errors import RunError, StorageError
from trainer.common.progress import silent
from trainer.curation.showing import StoredDecisions
from trainer.data.tokenization import STARTED
from trainer.records.evaluations import CleanOf
from trainer.records.sealed import write_sealed
from trainer.registry.references import pin, unpin
from trainer.store.local import LocalFiles
from trainer.store.manifest import MANIFEST
from trainer.store.storage import Store

HASHES = "measures/overlaps/{}.npz"
KEPT_OUT: dict[str, Any] = {
    "ngram": 13, "least_words": 5, "key": HASHES.format("used"), "files": [], "examples": HASHES.format("used"),
    "texts": [], "frequent": [],
}  # fmt: skip
USED, UNUSED, PAIRS = "measures/one-1/size-1", "measures/one-1/quality-1", "measures/pairs/1"


@pytest.fixture
def measured(any_store: Store) -> Store:
    """A run's decisions, others that nothing reaches, and measures of each and of neither."""
    decisions = add_decisions(any_store, "text", measures=[USED], kept_out=KEPT_OUT)
    add_run(any_store, "a", add_shards(any_store, "one", decisions=decisions))
    add_decisions(any_store, "lost", measures=[UNUSED], kept_out={**KEPT_OUT, "key": HASHES.format("unused")})
    for key in (
        f"{USED}/00000-00001-a.npz", f"{UNUSED}/00000-00001-a.npz", f"{PAIRS}/looked-at.npz", f"{PAIRS}/size-000.npz",
        HASHES.format("used"), HASHES.format("unused"),
    ):  # fmt: skip
        any_store.write_bytes(key, b"rows")
    return any_store


def measures(store: Store) -> list[str]:
    return sorted(file.key for file in store.walk() if file.key.startswith("measures/"))


def test_what_no_decisions_need_is_found_and_removed(measured: Store) -> None:
    told = found(measured)
    gone = [f"decisions/lost-{OLD}", UNUSED, HASHES.format("unused"), PAIRS]
    assert keys(told) == gone
    assert [each.what for each in told] == ["decisions", *["measures"] * 3]
    assert [each.size for each in told[1:]] == [4, 4, 8]
    assert len(measures(measured)) == 6, "a dry run removes nothing"
    assert found(measured, remove=True) == told
    assert measures(measured) == [f"{USED}/00000-00001-a.npz", HASHES.format("used")]
    assert found(measured) == []


def test_what_is_young_stays_whoever_needs_it(measured: Store) -> None:
    assert found(measured, older_than_days=1, remove=True) == []


def test_a_pin_keeps_decisions_with_what_they_were_made_from(measured: Store) -> None:
    assert pin(measured, f"decisions/lost-{OLD}") == f"decisions/lost-{OLD}"
    assert keys(found(measured)) == [PAIRS]
    unpin(measured, f"decisions/lost-{OLD}")
    assert len(found(measured)) == 4


def test_decisions_that_are_needed_again_while_they_are_removed_keep_their_measures(
    measured: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost, delete = f"decisions/lost-{OLD}", Store.delete

    def delete_and_pin(self: Store, name: str, first: str | None = None) -> None:
        delete(self, name, first)
        if name == f"{lost}/{MANIFEST}":
            self.write_bytes(f"pins/{lost}", b"")

    monkeypatch.setattr(Store, "delete", delete_and_pin)
    assert keys(found(measured, remove=True)) == [PAIRS]


def test_of_a_unit_the_newest_measures_stay_and_the_young(empty_store: Store) -> None:
    add_run(
        empty_store, "a", add_shards(empty_store, "one", decisions=add_decisions(empty_store, "text", measures=[USED]))
    )
    ages = {"00000-00002-b": 30, "00000-00002-a": 20, "00000-00002-c": 40, "00001-00002-a": 50, "00001-00002-d": 60}
    for name, days in ages.items():
        write_of_age(empty_store, f"{USED}/{name}.npz", days)
    (told,) = found(empty_store, older_than_days=35, remove=True)
    assert (told.key, told.size) == (USED, 8)
    assert abs(told.modified - (datetime.now(UTC) - timedelta(days=40))) < timedelta(hours=1)
    assert [Path(key).stem for key in measures(empty_store)] == ["00000-00002-a", "00000-00002-b", "00001-00002-a"]
    found(empty_store, older_than_days=0, remove=True)
    assert [Path(key).stem for key in measures(empty_store)] == ["00000-00002-a", "00001-00002-a"]


def write_of_age(store: Store, key: str, days: float) -> None:
    store.write_bytes(key, b"rows")
    os.utime(store.path(key), (time.time() - days * 86400,) * 2)


def test_while_it_is_not_known_what_decisions_need_all_measures_stay(measured: Store) -> None:
    measured.write_bytes(f"decisions/text-{OLD}/manifest.json", b"{")
    with pytest.raises(RunError, match=f"the inputs of .*decisions/text-{OLD} are not known"):
        found(measured, remove=True)
    assert len(measures(measured)) == 6


def test_a_file_that_cannot_be_removed_stops_no_other_removal(
    empty_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key in (f"{USED}/00000-00001-a.npz", f"{PAIRS}/looked-at.npz"):
        empty_store.write_bytes(key, b"rows")
    delete = LocalFiles.delete

    def refuse(files: LocalFiles, key: str, first: str | None = None) -> None:
        if key.startswith(USED):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), key)
        delete(files, key, first)

    monkeypatch.setattr(LocalFiles, "delete", refuse)
    with pytest.raises(StorageError, match=f"cannot delete .*{USED}.*: Permission denied"):
        found(empty_store, remove=True)
    assert measures(empty_store) == [f"{USED}/00000-00001-a.npz"]
    assert not (Path(empty_store.url) / PAIRS).exists(), "no empty folders are left"


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.curation.curate.Workers", Here)


@pytest.mark.usefixtures("here")
def test_decisions_are_made_again_and_shown_after_the_store_was_tidied(tmp_path: Path) -> None:
    texts = [" ".join(prose(number, 40)) for number in range(10)]
    write_documents(tmp_path / "raw" / "a.jsonl", [*texts, texts[3]])
    (tmp_path / "eval.txt").write_text(texts[5])
    files = {"decontaminate": {"files": [{"paths": [str(tmp_path / "eval.txt")]}]}, "near": {}}
    job = curated_job(tmp_path / "store", {"one": f"{tmp_path}/raw/*.jsonl"}, files)
    store = Store(job.store)
    data = prepare(job, silent())
    decisions = f"decisions/{store.names('decisions')[0]}"
    add_run(store, "a", data.shards[0].key)
    told = keys(found(store, remove=True))
    assert {key.rpartition("/")[0] for key in told} == {"measures/pairs"}
    (shown,) = StoredDecisions(store, decisions).examples("contaminated", None, 1)
    assert shown.why.endswith("eval.txt#1 (text)"), "what tells the example was kept with the hashes"
    kept = {key: Path(store.path(key)).stat().st_mtime_ns for key in measures(store)}
    shutil.rmtree(store.path(decisions))
    assert decide(job).key == decisions
    assert {key: Path(store.path(key)).stat().st_mtime_ns for key in kept} == kept, "nothing was measured anew"


def test_decisions_stay_with_the_tokenizer_that_was_trained_by_them(any_store: Store) -> None:
    decisions = add_decisions(any_store, "text")
    add_run(any_store, "a", add_shards(any_store, "one"))
    publish(any_store, f"tokenizers/one-0-{OLD}", "tokenizer", {"tokenizer.json": b"{}"}, {}, {"decisions": decisions})
    assert keys(found(any_store)) == []


def test_decisions_stay_with_the_figures_that_they_kept_clean(any_store: Store) -> None:
    named, decisions = add_run(any_store, "a", add_shards(any_store, "one")), add_decisions(any_store, "text")
    assert keys(found(any_store)) == [decisions]
    clean = CleanOf(ngram=13, least_words=5, files=[], decisions=[decisions], texts=1, too_short=0)
    write_sealed(any_store, f"{named}/eval.json", a_result({"validation": {}}, clean_of=clean).recorded())
    assert keys(found(any_store)) == []


def test_decisions_stay_while_shards_are_made_or_it_is_not_known_what_these_need(any_store: Store) -> None:
    decisions = add_decisions(any_store, "text")
    any_store.write_json(f"shards/one-{OLD}/{STARTED}", {})
    assert keys(found(any_store)) == []
    any_store.delete(f"shards/one-{OLD}")
    assert keys(found(any_store)) == [decisions]
    any_store.write_bytes(f"shards/one-{OLD}/{MANIFEST}", b"{")
    with pytest.raises(RunError, match=f"the inputs of .*shards/one-{OLD} are not known"):
        found(any_store, remove=True)
    assert any_store.exists(f"{decisions}/{MANIFEST}")
