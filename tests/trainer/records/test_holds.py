"""What is reused stays until a run says that it reads it; what leads to a run in another spelling keeps it."""

import os
import re
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from tests.support import small_job
from tests.trainer.made import prepare
from tests.trainer.preparing import job_of, run, write_raw
from tests.trainer.stocked_store import OLD, add_encoded, add_run, add_superseded, contents, found, keys
from trainer.common.errors import ArtifactError, RunError, StorageError
from trainer.common.progress import silent
from trainer.config.jobs import EvaluateJob
from trainer.pipelines.any_kind import evaluate_checkpoint, train
from trainer.records.lease import HOLDS, LONG, LONGEST, SPENT, forget_ended, held, hold_reused, holding
from trainer.records.run_names import run_at
from trainer.records.sealed import read_sealed, write_sealed
from trainer.registry.references import pin
from trainer.store.manifest import MANIFEST
from trainer.store.storage import Store
from trainer.training import run as training
from trainer.training.identity import claim_run
from trainer.training.runtime import Runtime


def names(store: Store) -> list[str]:
    return sorted(key for key in contents(store) if key.startswith(HOLDS))


def test_data_that_is_reused_stays_for_the_run_that_waits_however_young_it_is(
    own: Path, code: Path, tmp_path: Path
) -> None:
    store = Store(str(own))
    reused = run(job_of(code, own))
    before = contents(store)
    assert held(store) == {reused.tokenizer.key, *(ref.key for ref in reused.shards)}
    assert run(job_of(code, own)) == reused
    assert contents(store) == before, "it is held already"
    run(job_of(write_raw(tmp_path / "other"), own, tokenizer={"vocab_size": 300}))
    assert found(store, remove=True) == []
    assert all(key in contents(store) for key in before)


def test_a_reused_set_that_is_just_being_removed_is_made_anew(
    own: Path, code: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, job = Store(str(own)), job_of(code, own)
    (shards,) = (f"shards/{name}" for name in store.names("shards"))
    for key in filter(lambda key: key.startswith(HOLDS), contents(store)):
        store.delete(key)
    write = Store.write_bytes

    def removed(store: Store, key: str, data: bytes) -> None:
        write(store, key, data)
        if key.startswith(f"{HOLDS}/{shards}@"):
            store.delete(shards, first=MANIFEST)

    with monkeypatch.context() as patch:
        patch.setattr(Store, "write_bytes", removed)
        again = run(job)
    assert not again.shards[0].reused and store.exists(f"{shards}/{MANIFEST}")


@pytest.mark.deep
def test_a_store_that_cannot_be_written_is_read(any_store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    key = add_encoded(any_store, "pairs")

    def refuse(*arguments: object) -> None:
        raise PermissionError("read-only")

    for name in ("put", "write"):  # a remote store sends what is small by the second
        monkeypatch.setattr(any_store.files, name, refuse, raising=False)
    assert hold_reused(any_store, key)
    assert names(any_store) == []


def test_a_hold_counts_for_its_time_and_its_file_goes_after_that(any_store: Store) -> None:
    add_run(any_store, "x", add_encoded(any_store, "x"))
    with holding(any_store, "runs/x"), holding(any_store, "runs/x", timedelta(seconds=-2)):
        assert held(any_store) == {"runs/x"}
        assert len(names(any_store)) == 2
        assert found(any_store, runs_older_than_days=0, remove=True) == []
        assert len(names(any_store)) == 1
    assert names(any_store) == []
    with holding(any_store, "runs/x", -SPENT):
        assert "runs/x" in keys(found(any_store, runs_older_than_days=0))
        forget_ended(any_store)
        assert held(any_store) == set()


def test_a_hold_that_ends_too_soon_is_renewed_and_one_that_lasts_is_kept(any_store: Store) -> None:
    key = add_encoded(any_store, "x")
    with holding(any_store, key, LONG - SPENT - timedelta(hours=1)):
        for _ in range(2):
            assert hold_reused(any_store, key)
            assert len(names(any_store)) == 2


def test_a_run_that_began_while_its_data_was_removed_ends_at_once(
    raw: Path, stocked: Path, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = small_job(raw, stocked, training__max_steps=2)
    data = prepare(job.preparation(), silent())

    def claim_late(store: Store, *arguments: Any) -> None:
        claim_run(store, *arguments)
        store.delete(f"{data.shards[0].key}/{MANIFEST}")

    monkeypatch.setattr(training, "claim_run", claim_late)
    expected = f"{data.shards[0].key} was removed while runs/other started; run the job again"
    with pytest.raises(ArtifactError, match=expected):
        train(job.model_copy(update={"run": "other"}), silent())


SPELLINGS: dict[str, Callable[[Path], str]] = {
    "key with a dot": lambda root: "runs/./base/final",
    "key with a detour": lambda root: "runs/tuned/../base/final",
    "path with two slashes": lambda root: f"{root}//runs//base/final",
    "path with a detour": lambda root: f"{root}/runs/tuned/../base/final",
    "link": lambda root: f"{root.parent}/link",
    "path from here": lambda root: f"{os.path.relpath(root)}/runs//base/final",
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_base_model_is_reached_however_it_is_spelled(tmp_path: Path, spelling: str) -> None:
    store = Store(str(tmp_path / "store"))
    base, tuned = add_run(store, "base", add_encoded(store, "base")), add_encoded(store, "tuned")
    (tmp_path / "link").symlink_to(tmp_path / "store" / "runs" / "base" / "final")
    named = SPELLINGS[spelling](tmp_path / "store")
    in_store = spelling.startswith("key")
    start = {"origin": "store" if in_store else "folder", "key": named if in_store else None}
    pin(store, add_run(store, "tuned", tuned, start=start, job={"model": {"pretrained": named}}))
    assert found(store, runs_older_than_days=0) == []
    assert run_at(store, named if in_store else str(Path(named).absolute())) == base, "lineage says the same"


def test_what_a_removed_run_was_measured_on_goes_too_however_it_was_named(
    raw: Path, stocked: Path, runtime: Runtime
) -> None:
    store, job = Store(str(stocked)), small_job(raw, stocked, training__max_steps=2, evaluation__prompts=[])
    key = train(job, silent()).key
    sets = [ref["key"] for ref in read_sealed(store, f"{key}/config.json")["data"]["shards"]]
    measured = evaluate_checkpoint(EvaluateJob(store=str(stocked), checkpoint="tiny", shards=sets[:1]), silent())
    assert measured.model == read_sealed(store, measured.key)["model"] == f"{key}/final"
    record = read_sealed(store, measured.key)
    write_sealed(store, measured.key, {**record, "data": [(lost := add_superseded(store, "lost"))]})
    assert lost not in keys(found(store))
    assert {key, lost} <= set(keys(found(store, runs_older_than_days=0, remove=True)))
    assert not store.exists(f"{lost}/{MANIFEST}") and OLD in lost


@pytest.mark.parametrize("damage", ["key", "time", "sum", "cut"])
def test_while_the_name_of_a_hold_is_damaged_nothing_is_removed(empty_store: Store, damage: str) -> None:
    add_run(empty_store, "x", add_encoded(empty_store, "x"))
    add_encoded(empty_store, "lost")
    with holding(empty_store, "runs/x"):
        (name,) = names(empty_store)
        renamed = {
            "key": name.replace("/x@", "/y@"),
            "time": name.replace("@2", "@3"),
            "sum": name[:-1],
            "cut": name[:-25],
        }
        changed = renamed[damage]
        empty_store.rename(name, changed)
        before = contents(empty_store)
        with pytest.raises(
            RunError, match=rf"{re.escape(changed)} is damaged: .*; delete it if nothing runs .* nothing is removed"
        ):
            found(empty_store, runs_older_than_days=0, remove=True)
        assert contents(empty_store) == before
        assert hold_reused(empty_store, f"encoded/x-{OLD}"), "to hold something else is possible"
        empty_store.delete(changed)
        assert "runs/x" in keys(found(empty_store, runs_older_than_days=0))


def test_a_damaged_hold_stops_removal_only_while_it_may_count_and_all_are_named(empty_store: Store) -> None:
    lost = add_encoded(empty_store, "lost")
    both = [f"{HOLDS}/runs/{name}@20260501T120000-0123abcd" for name in "xy"]
    for name in both:
        empty_store.write_bytes(name, b"")
    with pytest.raises(RunError, match=rf"{both[0]} is damaged.*{both[1]} is damaged"):
        found(empty_store, remove=True)
    for name in both:
        when = time.time() - (LONGEST + timedelta(days=1)).total_seconds() - 60
        os.utime(Path(empty_store.url) / name, (when, when))
    assert keys(found(empty_store)) == [lost] and names(empty_store) == both
    assert keys(found(empty_store, remove=True)) == [lost] and names(empty_store) == []


@pytest.mark.parametrize("kind", ["renamed", "of another kind", "one bit"])
def test_while_a_pin_is_damaged_nothing_is_removed(empty_store: Store, kind: str) -> None:
    pin(empty_store, add_run(empty_store, "x", add_encoded(empty_store, "x")))
    add_run(empty_store, "y", add_encoded(empty_store, "y"))
    add_encoded(empty_store, "lost")
    content = empty_store.read_bytes("pins/runs/x")
    target = {"renamed": "pins/runs/y", "of another kind": "pins/runz/x", "one bit": "pins/runs/x"}[kind]
    empty_store.delete("pins/runs/x")
    empty_store.write_bytes(target, content.replace(b'"20', b'"30') if kind == "one bit" else content)
    before = contents(empty_store)
    with pytest.raises(RunError, match=rf"{target} is damaged: .* delete it and set the pin .* nothing is removed"):
        found(empty_store, runs_older_than_days=0, remove=True)
    assert contents(empty_store) == before
    empty_store.delete(target)
    pin(empty_store, "x")
    assert [key for key in keys(found(empty_store, runs_older_than_days=0)) if key.startswith("runs/")] == ["runs/y"]


def test_what_cannot_be_held_for_now_is_not_used(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(str(own))
    (key,) = (f"shards/{name}" for name in store.names("shards"))
    for name in names(store):
        store.delete(name)
    problem = StorageError("no space left", transient=True)
    monkeypatch.setattr(Store, "write_bytes", Mock(side_effect=problem))
    with pytest.raises(StorageError, match="no space left"):
        hold_reused(store, key)
    problem.transient = False  # a store that is only read
    assert hold_reused(store, key)
