"""Bugs that are put into the store, leases, champions and garbage, each of which some seed must find."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest.mock import patch

from tests.simulation import clients, predicting
from trainer.config.labelled import PredictJob
from trainer.kinds.labelled import predictions
from trainer.records import lease, steps
from trainer.records.lease import LEASE
from trainer.records.steps import CONTENTS
from trainer.registry import garbage
from trainer.registry.references import References
from trainer.store import private_folders
from trainer.store.manifest import MANIFEST
from trainer.store.remote import RemoteObjects
from trainer.store.storage import Store
from trainer.training.saver import Saver


def manifest_sent_first() -> Any:
    def put_folder(self: RemoteObjects, folder: Path, key: str, last: str, same: bool = False) -> None:
        for path in sorted(folder.iterdir(), key=lambda path: path.name != last):
            self.put(path, f"{key}/{path.name}")

    return patch.object(RemoteObjects, "put_folder", put_folder)


def unconditional_pointer() -> Any:
    """A champion is written over whatever came there meanwhile."""
    return _swapped_without_proof(lambda key: not key.endswith(LEASE))


def unconditional_lease() -> Any:
    """A lease is written over whatever came there meanwhile."""
    return _swapped_without_proof(lambda key: key.endswith(LEASE))


def _swapped_without_proof(chosen: Callable[[str], bool]) -> Any:
    sound = RemoteObjects.swap

    def swap(self: RemoteObjects, data: bytes, key: str, expected: bytes) -> bool:
        if not chosen(key):
            return sound(self, data, key, expected)
        if not self.exists(key) or self.read(key) != expected:
            return False
        self.write(data, key)
        return True

    return patch.object(RemoteObjects, "swap", swap)


def lease_of_the_living_taken() -> Any:
    """Whoever comes later takes a run over, whenever its holder last gave a sign of life."""
    return patch.object(lease, "_is_alive", lambda *_: False)


def lease_by_the_local_clock() -> Any:
    """A sign of life is as old as this machine's clock says."""

    def is_alive(store: Store, key: str, held: dict[str, Any]) -> bool:
        if lease._is_seen(held):
            return bool(lease._started(held["pid"]) == held["started"])
        return bool(time.time() - datetime.fromisoformat(held["beat"]).timestamp() < lease.STALE_SECONDS)

    return patch.object(lease, "_is_alive", is_alive)


def no_lease() -> Any:
    """Nobody asks who writes to a run."""
    nothing = {"__enter__": lambda self: self, "__exit__": lambda self, *_: None, "check": lambda self: None}
    return patch.multiple(lease.Lease, **nothing)


def lease_of_another_given_back() -> Any:
    """Who ends removes the lease, whoever's it is by now."""
    return patch.object(lease.Lease, "_give_back", lambda self: self._store.delete(self._key))


def lease_never_looked_at_again() -> Any:
    """A process that was silent for long goes on writing."""
    return patch.object(lease.Lease, "check", lambda self: None)


def removal_without_second_look() -> Any:
    """What came to be needed since it was listed is removed all the same."""

    def remove_artifact(store: Store, key: str, is_reached: Callable[[], bool]) -> bool:
        store.delete(key, first=MANIFEST)
        return True

    return patch.object(garbage, "remove_artifact", remove_artifact)


def runs_removed_without_lease() -> Any:
    """A run is removed whoever holds it."""

    def remove_run(store: Store, run: str, before: Any, is_reached: Callable[[], bool]) -> bool:
        store.delete(run)
        return True

    return patch.object(garbage, "remove_run", remove_run)


def run_removed_without_second_look() -> Any:
    """A run is removed that somebody came to need, or to continue, since it was listed."""
    sound = garbage.remove_run

    def remove_run(store: Store, run: str, before: datetime, is_reached: Callable[[], bool]) -> bool:
        return sound(store, run, datetime.max.replace(tzinfo=UTC), lambda: False)

    return patch.object(garbage, "remove_run", remove_run)


def reused_without_hold() -> Any:
    """Nothing says that what is used again is needed, until a run does."""
    return patch.object(steps, "hold_reused", lambda store, key: True)


def newest_checkpoint_retired() -> Any:
    """A save keeps what is older than itself, and removes itself."""

    def retire(self: Saver, state: Any) -> None:
        self._store.delete(f"{self._run}/checkpoints/step-{state.step:08d}", first=MANIFEST)

    return patch.object(Saver, "_retire", retire)


def damage_not_looked_for() -> Any:
    """A finished model is taken to be whole."""
    return patch.object(clients, "find_damage", lambda *_: {})


def bases_not_reached() -> Any:
    """Runs that others begin with are removed as any others."""
    return _reached_without(lambda key: key.startswith("runs/"))


def decisions_not_reached() -> Any:
    """Decisions that data was made by are removed as if nobody needed them."""
    return _reached_without(lambda key: key.startswith("decisions/"))


def _reached_without(left_out: Callable[[str], bool]) -> Any:
    sound = References.of

    def of(self: References, key: str) -> set[str] | None:
        found = sound(self, key)
        return found and {each for each in found if not left_out(each)}

    return patch.object(References, "of", of)


def folders_of_the_living_swept() -> Any:
    """Whatever lies in private folders is removed."""
    return patch.object(private_folders, "_remove_if_abandoned", lambda folder: private_folders.shutil.rmtree(folder))


def predictions_of_any_model() -> Any:
    """Predictions are named by their texts alone."""
    sound = predictions.identify_predictions

    def identify(store: Store, job: PredictJob) -> predictions.Wanted:
        wanted = sound(store, job)
        return wanted._replace(recipe={**wanted.recipe, CONTENTS: None})

    return patch.object(predicting, "identify_predictions", identify)


BUGS: Mapping[str, Callable[[], Any]] = {
    each.__name__: each
    for each in (
        manifest_sent_first, unconditional_pointer, no_lease, lease_of_another_given_back, lease_of_the_living_taken,
        lease_never_looked_at_again, lease_by_the_local_clock, unconditional_lease, run_removed_without_second_look,
        reused_without_hold, removal_without_second_look, runs_removed_without_lease, newest_checkpoint_retired,
        damage_not_looked_for, bases_not_reached, decisions_not_reached, folders_of_the_living_swept,
        predictions_of_any_model,
    )
}  # fmt: skip


@contextmanager
def planted(bug: str) -> Iterator[None]:
    """With one of the bugs, for the length of a block; with none, if it is empty."""
    if not bug:
        yield
        return
    with BUGS[bug]():
        yield
