"""Removal while others work in the same store: at each instant either they are seen, or they see what is being
removed.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.trainer.report_runs import publish
from tests.trainer.stocked_store import (
    OLD,
    add_decisions,
    add_encoded,
    add_run,
    add_superseded,
    add_tokenizer,
    contents,
    found,
    job,
    keys,
)
from trainer.common.errors import ArtifactError, StorageError
from trainer.config.runs import PromotionConfig
from trainer.data.tokenization import STARTED
from trainer.records.lease import holding
from trainer.registry import garbage
from trainer.registry.garbage import collect, remove_artifact
from trainer.registry.promotion import find_champion, key_of, pass_through, promote
from trainer.registry.references import pin, pinned
from trainer.store.manifest import MANIFEST
from trainer.store.storage import Store

GATE = PromotionConfig(name="lm", metric="loss", threshold=9)
ROOTS: dict[str, Callable[[Store], object]] = {
    "pinned": lambda store: pin(store, "x"),
    "promoted": lambda store: promote(store, "lm", "runs/x", {}, "why"),
    "let through": lambda store: pass_through(store, GATE, "runs/x", {"loss": 1.0}),
}


@pytest.fixture
def around_last_look(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, Callable[[], object]], None]]:
    """Do something once: right before or after the first last look at what stays, or after the first deletion that
    follows.
    """

    def inject(when: str, begin: Callable[[], object]) -> None:
        find, delete, to_come, looks = garbage.find_roots, Store.delete, ["before", "after", "half way"], 0

        def reach(instant: str) -> None:
            if to_come[:1] == [instant]:
                del to_come[0]
                if instant == when:
                    begin()

        def looked(*arguments: Any) -> set[str]:
            nonlocal looks
            looks += 1
            if looks > 1:
                reach("before")
            roots = find(*arguments)
            if looks > 1:
                reach("after")
            return roots

        def deleted(store: Store, key: str, first: str | None = None) -> None:
            delete(store, key, first)
            reach("half way")

        monkeypatch.setattr(garbage, "find_roots", looked)
        monkeypatch.setattr(Store, "delete", deleted)

    yield inject


@pytest.mark.parametrize("when", ["before", "after", "half way"])
@pytest.mark.parametrize("root", ROOTS)
def test_of_a_run_that_is_being_removed_nobody_is_told_that_it_stays(
    empty_store: Store, root: str, when: str, around_last_look: Callable[[str, Callable[[], object]], None]
) -> None:
    add_run(empty_store, "x", add_encoded(empty_store, "x"))
    refused = []

    def begin() -> None:
        with pytest.raises(ArtifactError) as error:
            ROOTS[root](empty_store)
        refused.append(str(error.value))

    around_last_look(when, begin)
    assert "runs/x" in keys(found(empty_store, runs_older_than_days=0, remove=True))
    assert "being removed" in refused[0]
    assert not pinned(empty_store) and find_champion(empty_store, "lm") is None
    assert not any(key.startswith(("runs/x/", "pins/")) for key in contents(empty_store))


@pytest.mark.parametrize("root", ROOTS)
def test_a_run_that_became_needed_before_its_removal_began_stays(empty_store: Store, root: str) -> None:
    for name in ("a", "x"):
        add_run(empty_store, name, add_encoded(empty_store, name))
    removal = collect(job(empty_store, runs_older_than_days=0, remove=True))
    assert next(removal).key == "runs/a"
    ROOTS[root](empty_store)
    assert keys(list(removal)) == [f"encoded/a-{OLD}"]
    assert empty_store.exists("runs/x/final/manifest.json")


def test_a_promotion_that_ends_during_the_last_look_is_seen(
    empty_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_run(empty_store, "x", add_encoded(empty_store, "x"))
    promote(empty_store, "lm", "runs/x", {}, "why")
    champion, names, hold = empty_store.read_bytes(key_of("lm")), Store.names, holding(empty_store, "runs/x")
    empty_store.delete("models/lm")
    hold.__enter__()
    looks = 0

    def promoted(store: Store, key: str) -> list[str]:
        nonlocal looks
        listed = names(store, key)
        looks += key == "models"
        if key == "models" and looks == 2 and champion:
            store.write_bytes(key_of("lm"), champion)
            hold.__exit__(None, None, None)
        return listed

    monkeypatch.setattr(Store, "names", promoted)
    monkeypatch.setattr("trainer.registry.garbage._dependents_first", lambda runs, references: ["runs/x"])
    assert "runs/x" not in keys(found(empty_store, runs_older_than_days=0, remove=True))
    assert looks == 2 and empty_store.exists("runs/x/final/manifest.json")


def test_a_run_that_was_written_to_since_it_was_listed_stays(empty_store: Store) -> None:
    for name in ("a", "x"):
        add_run(empty_store, name, add_encoded(empty_store, name))
    removal = collect(job(empty_store, runs_older_than_days=0, remove=True))
    assert next(removal).key == "runs/a"
    empty_store.write_bytes("runs/x/metrics.jsonl", b"{}\n{}\n")
    before = {key: data for key, data in contents(empty_store).items() if key.startswith("runs/x/")}
    assert keys(list(removal)) == [f"encoded/a-{OLD}"]
    assert {key: data for key, data in contents(empty_store).items() if key.startswith("runs/x/")} == before


def test_another_run_under_the_name_of_a_deleted_one_is_read_anew(any_store: Store) -> None:
    add_run(any_store, "x", add_superseded(any_store, "kept"))
    lost, needed = add_encoded(any_store, "a-lost"), add_encoded(any_store, "needed")
    removal = collect(job(any_store, remove=True))
    assert next(removal).key == lost
    any_store.delete("runs/x")
    add_run(any_store, "x", needed)
    assert needed not in keys(list(removal))
    assert any_store.exists(f"{needed}/train.arrow")


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_set_that_is_published_anew_during_its_removal_stays(
    any_store: Store, when: str, around_last_look: Callable[[str, Callable[[], object]], None]
) -> None:
    key = add_encoded(any_store, "pairs")
    around_last_look(when, lambda: publish(any_store, key, "encoded", {"train.arrow": b"made anew"}, {}))
    assert found(any_store, remove=True) == []
    assert any_store.read_bytes(f"{key}/train.arrow") == b"made anew"
    assert any_store.exists(f"{key}/{MANIFEST}")


def test_a_tokenizer_that_is_published_during_a_removal_keeps_what_it_was_trained_by(
    any_store: Store, around_last_look: Callable[[str, Callable[[], object]], None]
) -> None:
    decisions = add_decisions(any_store, "text")
    add_run(any_store, "x", f"shards/late-{OLD}")
    around_last_look("before", lambda: add_tokenizer(any_store, "late-0", decisions=decisions))
    assert found(any_store, remove=True) == []
    assert any_store.exists(f"{decisions}/{MANIFEST}")


def test_a_pin_outlives_an_attempt_to_pin_what_is_missing_meanwhile(any_store: Store) -> None:
    key = pin(any_store, add_encoded(any_store, "pairs"))
    any_store.delete(key)
    any_store.write_bytes(f"{key}/train.arrow", b"not removed yet")
    with pytest.raises(ArtifactError, match=r"cannot pin .*removed; there is none"):
        pin(any_store, key)
    assert pinned(any_store) == {key}


def test_the_manifest_that_is_put_back_replaces_no_newer_one(any_store: Store) -> None:
    key = add_encoded(any_store, "pairs")

    def needed_and_made_anew() -> bool:
        publish(any_store, key, "encoded", {"train.arrow": b"made anew"}, {})
        published.append(any_store.read_bytes(f"{key}/{MANIFEST}"))
        return True

    published: list[bytes] = []
    assert not remove_artifact(any_store, key, needed_and_made_anew)
    assert [any_store.read_bytes(f"{key}/{MANIFEST}")] == published


def test_a_preparation_that_begins_after_the_last_look_keeps_its_shards(
    any_store: Store, around_last_look: Callable[[str, Callable[[], object]], None]
) -> None:
    key = add_superseded(any_store, "code")
    around_last_look("after", lambda: any_store.write_json(f"{key}/{STARTED}", {}))
    assert key not in keys(found(any_store, remove=True))
    assert any_store.exists(f"{key}/shard-00000.bin")


def test_a_deletion_that_is_carried_out_and_reported_as_failed_loses_no_manifest(
    any_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, delete = add_encoded(any_store, "pairs"), Store.delete

    def no_answer(store: Store, name: str, first: str | None = None) -> None:
        delete(store, name, first)
        raise StorageError("no answer")

    before = contents(any_store)
    with monkeypatch.context() as patch, pytest.raises(StorageError, match="no answer"):
        patch.setattr(Store, "delete", no_answer)
        found(any_store, remove=True)
    assert contents(any_store) == before
    assert keys(found(any_store)) == [key]
