"""Bugs that are planted in the store, leases, champions and garbage collection; some seed must find each of them."""

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
    """A champion's file is written without checking for a concurrent change."""
    return _swapped_without_proof(lambda key: not key.endswith(LEASE))


def unconditional_lease() -> Any:
    """A lease is written without checking for a concurrent change."""
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
    """A later process takes over a run even if its holder is alive."""
    return patch.object(lease, "_is_alive", lambda *_: False)


def lease_by_the_local_clock() -> Any:
    """The age of a lease is computed with this machine's clock."""

    def is_alive(store: Store, key: str, held: dict[str, Any]) -> bool:
        if lease._is_seen(held):
            return bool(lease._started(held["pid"]) == held["started"])
        return bool(time.time() - datetime.fromisoformat(held["beat"]).timestamp() < lease.STALE_SECONDS)

    return patch.object(lease, "_is_alive", is_alive)


def no_lease() -> Any:
    """Writes to a run do not check its lease."""
    nothing = {"__enter__": lambda self: self, "__exit__": lambda self, *_: None, "check": lambda self: None}
    return patch.multiple(lease.Lease, **nothing)


def lease_of_another_given_back() -> Any:
    """A process that ends removes the lease even if another process holds it."""
    return patch.object(lease.Lease, "_give_back", lambda self: self._store.delete(self._key))


def lease_never_looked_at_again() -> Any:
    """A process continues writing after a long freeze."""
    return patch.object(lease.Lease, "check", lambda self: None)


def removal_without_second_look() -> Any:
    """Artifacts are removed even if they came into use after the listing."""

    def remove_artifact(store: Store, key: str, is_reached: Callable[[], bool]) -> bool:
        store.delete(key, first=MANIFEST)
        return True

    return patch.object(garbage, "remove_artifact", remove_artifact)


def removal_without_last_look() -> Any:
    """Artifacts are removed even if another process built them again meanwhile."""
    remove = garbage.remove_artifact

    def remove_artifact(store: Store, key: str, is_reached: Callable[[], bool]) -> bool:
        with patch.object(store, "exists", lambda key: False):
            return remove(store, key, is_reached)

    return patch.object(garbage, "remove_artifact", remove_artifact)


def runs_removed_without_lease() -> Any:
    """A run is removed even if a process holds it."""

    def remove_run(store: Store, run: str, before: Any, is_reached: Callable[[], bool]) -> bool:
        store.delete(run)
        return True

    return patch.object(garbage, "remove_run", remove_run)


def run_removed_without_second_look() -> Any:
    """A run is removed even if it was resumed or came into use after the listing."""
    sound = garbage.remove_run

    def remove_run(store: Store, run: str, before: datetime, is_reached: Callable[[], bool]) -> bool:
        return sound(store, run, datetime.max.replace(tzinfo=UTC), lambda: False)

    return patch.object(garbage, "remove_run", remove_run)


def reused_without_hold() -> Any:
    """Reused artifacts are not held until a run records them."""
    return patch.object(steps, "hold_reused", lambda store, key: True)


def newest_checkpoint_retired() -> Any:
    """A save keeps older saves and removes itself."""

    def retire(self: Saver, state: Any) -> None:
        self._store.delete(f"{self._run}/checkpoints/step-{state.step:08d}", first=MANIFEST)

    return patch.object(Saver, "_retire", retire)


def damage_not_looked_for() -> Any:
    """A finished model is assumed to be intact."""
    return patch.object(clients, "find_damage", lambda *_: {})


def bases_not_reached() -> Any:
    """Runs that other runs begin with are removed like others."""
    return _reached_without(lambda key: key.startswith("runs/"))


def decisions_not_reached() -> Any:
    """Curation decisions are removed although data depends on them."""
    return _reached_without(lambda key: key.startswith("decisions/"))


def _reached_without(left_out: Callable[[str], bool]) -> Any:
    sound = References.of

    def of(self: References, key: str) -> set[str] | None:
        found = sound(self, key)
        return found and {each for each in found if not left_out(each)}

    return patch.object(References, "of", of)


def folders_of_the_living_swept() -> Any:
    """All private folders are removed, including those in use."""
    return patch.object(private_folders, "_remove_if_abandoned", lambda folder: private_folders.shutil.rmtree(folder))


def predictions_of_any_model() -> Any:
    """Predictions are identified only by their texts."""
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
        reused_without_hold, removal_without_second_look, removal_without_last_look, runs_removed_without_lease,
        newest_checkpoint_retired, damage_not_looked_for, bases_not_reached, decisions_not_reached,
        folders_of_the_living_swept, predictions_of_any_model,
    )
}  # fmt: skip


@contextmanager
def planted(bug: str) -> Iterator[None]:
    """Plant a bug during the block; none if the name is empty."""
    if not bug:
        yield
        return
    with BUGS[bug]():
        yield
