"""The work of the simulated processes. It is the project's code, but training is replaced by a sum over samples."""

import hashlib
import json
import logging
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from tests.simulation.bucket import URL
from tests.simulation.preparing import CURATED, WrongRead, encode, relying
from tests.simulation.world import MEETING, World, pause
from trainer.common.errors import ArtifactError
from trainer.common.stopping import defer_stop
from trainer.common.transient import retry_transient
from trainer.config.jobs import GarbageJob
from trainer.records.lease import Lease
from trainer.records.sealed import read_sealed, write_sealed
from trainer.registry.garbage import collect
from trainer.registry.leftovers import find_leftovers, remove_leftover
from trainer.registry.promotion import find_champion, promote
from trainer.store.artifact_files import fetch_artifact, find_damage
from trainer.store.manifest import ArtifactRef, Input, Manifest, fingerprint, publish_folder, read_manifest
from trainer.store.names import CHECKPOINT_KIND, CONFIG, FINAL, FINAL_KIND
from trainer.store.storage import Store
from trainer.training.checkpoint import STATE, TrainState, find_checkpoint, read_state
from trainer.training.identity import Run, check_begun
from trainer.training.saver import Saver, SaverOptions

log = logging.getLogger(__name__)

RUNS = {"one": "text", "two": "text", "three": CURATED, "four": "late", "tuned": "text"}
"""Runs with their data. `late` data is prepared long before it is read."""
BASES = {"tuned": "one"}
"""Runs that begin with another run's final model."""

STEPS, SAVE_EVERY = 6, 2
STEP_SECONDS = 1.0, 40.0
MODEL = "model"
JOB = {"data": {"text_columns": ["text"]}}
"""The recorded settings of a run."""
PROMOTIONS, COLLECTIONS, SWEEPS = 2, 4, 4
"""How often each run is promoted if it is finished, garbage is collected, and a machine is swept."""
YOUNG = timedelta(minutes=5)
"""Age below which collections delete nothing."""


LOOKS = 20
"""How often a run checks for the model that it begins with."""


@dataclass
class Snapshot:
    """The content of a save: the training state and the sum over all samples so far."""

    state: TrainState
    total: str
    epoch: int | None = None

    def size(self) -> int:
        return 0


class FoldSaver(Saver):
    """The real saver, with the sum instead of a model's tensors."""

    def _commit(self, snapshot: Any) -> None:
        state, place = snapshot.state, self._place(snapshot)
        with self._store.staging(key=place) as folder:
            (folder / STATE).write_text(json.dumps({"state": state.model_dump(), "total": snapshot.total}))
            self._require_lease()
            self._drop_dangling_pointer(state)
            publish_folder(self._store, folder, place, CHECKPOINT_KIND, self._options.fingerprint, self._details(state))
        self._unmarked.append((state, snapshot.epoch))


def fold(total: str, step: int) -> str:
    """The sum after one more batch."""
    return hashlib.sha256(f"{total} {step}".encode()).hexdigest()


def whole_fold(name: str) -> str:
    """The sum of an undisturbed run."""
    total = whole_fold(BASES[name]) if name in BASES else ""
    for step in range(1, STEPS + 1):
        total = fold(total, step)
    return total


def train(world: World, name: str, data: str, raw: Path, relied: Counter[str]) -> None:
    """Prepare, claim the run, train from its newest checkpoint, publish the final model.

    `relied` counts the runs that reuse an artifact and have not recorded yet that they read it.
    """
    store = Store(URL)
    if data == "late":
        world.sleep(world.draw.choice([150.0, 300.0, 600.0]))
    pause(world, 900.0)
    begun = read_base(world, store, name)
    found = encode(store, data, raw, relied)
    key = f"runs/{name}"
    identity = {"name": name, "base": begun}
    inputs = {"encoded set": Input(key=found.key, content=found.content)}
    if name in BASES:
        inputs["model"] = Input(key=f"runs/{BASES[name]}", content="")
    run = Run(key, fingerprint(identity), identity, inputs=inputs)
    with ExitStack() as stack:
        with relying(relied, found):
            pause(world, 300.0)
            lease = stack.enter_context(Lease(store, key))
            claim(store, run, found)
            check_begun(store, run)
        if is_finished(store, run):
            return
        state, total = resume(store, run) or (TrainState(), begun)
        options = SaverOptions((), run.fingerprint, keep_last=1, check=lease.check)
        with FoldSaver(store, key, None, options) as saver:
            manifest = require_data(store, found.key)
            if state.step:
                saver.complete(state)
            while state.step < STEPS:
                world.sleep(world.draw.uniform(*STEP_SECONDS))
                read_data(store, found.key, data, manifest)
                state.step += 1
                state.attempts += 1
                total = fold(total, state.step)
                if state.step % SAVE_EVERY == 0 or state.step == STEPS:
                    snapshot = Snapshot(state.model_copy(), total)
                    saver.save(lambda copies, taken=snapshot: taken)
        with defer_stop():
            retry_transient(lambda: publish_final(store, run, lease, total))


def read_base(world: World, store: Store, name: str) -> str:
    """The initial sum of a run: that of the finished run that it begins with, for which it waits."""
    if name not in BASES:
        return ""
    key = f"runs/{BASES[name]}/{FINAL}"
    for _ in range(LOOKS):
        manifest = read_manifest(store, key, FINAL_KIND)
        if manifest is not None:
            return read_fetched(store, key, "total.txt", manifest)
        world.sleep(MEETING)
    raise ArtifactError(f"{key}, which {name} begins with, is not there")


def claim(store: Store, run: Run, data: ArtifactRef) -> None:
    earlier = read_sealed(store, f"{run.key}/{CONFIG}")
    if earlier is not None and earlier["fingerprint"] != run.fingerprint:
        raise WrongRead(f"{run.key} is that of another run")
    values = {"fingerprint": run.fingerprint, "identity": run.identity, "job": JOB, "data": data.model_dump()}
    inputs = {role: each.model_dump() for role, each in run.inputs.items()}
    write_sealed(store, f"{run.key}/{CONFIG}", {**values, "inputs": inputs, "fork": None, "start": None})


def is_finished(store: Store, run: Run) -> bool:
    try:
        manifest = read_manifest(store, f"{run.key}/{FINAL}", FINAL_KIND)
    except ArtifactError as error:
        log.info("%s: publishing the final model again", error)
        return False
    return manifest is not None and not find_damage(store, f"{run.key}/{FINAL}", manifest)


def resume(store: Store, run: Run) -> tuple[TrainState, str] | None:
    key = find_checkpoint(store, run.key, run.fingerprint, STEPS)
    if key is None:
        return None
    saved = read_state(fetch_artifact(store, f"{run.key}/{key}", CHECKPOINT_KIND))
    return TrainState(**saved["state"]), saved["total"]


def require_data(store: Store, key: str) -> Manifest:
    """A rank's manifest of its data, before it reads the data."""
    manifest = read_manifest(store, key, "encoded")
    if manifest is None:
        raise ArtifactError(f"{key}, which a run reads, is gone")
    return manifest


def read_data(store: Store, key: str, name: str, manifest: Manifest) -> None:
    """Read a file of a rank's data and compare it."""
    text = read_fetched(store, key, "part-1", manifest)
    if text != f"{name} 1":
        raise WrongRead(f"{key}/part-1 holds {text!r}")


def read_fetched(store: Store, key: str, name: str, manifest: Manifest) -> str:
    try:
        return store.fetch(f"{key}/{name}", manifest.digests()[name]).read_text()
    except FileNotFoundError as error:
        raise ArtifactError(f"{key}/{name}, which a run reads, is gone") from error


def publish_final(store: Store, run: Run, lease: Lease, total: str) -> None:
    with store.staging(key=f"{run.key}/{FINAL}") as folder:
        (folder / "config.json").write_text("{}")
        (folder / "total.txt").write_text(total)
        lease.check()
        publish_folder(store, folder, f"{run.key}/{FINAL}", FINAL_KIND, run.fingerprint, {"run": run.fingerprint})


def collect_garbage(world: World) -> None:
    for _ in range(COLLECTIONS):
        pause(world, 900.0)
        days = YOUNG / timedelta(days=1)
        list(collect(GarbageJob(store=URL, older_than_days=days, runs_older_than_days=days, remove=True)))


def remove_leftovers(world: World) -> None:
    pause(world, 600.0)
    store = Store(URL)
    for left in find_leftovers(store, YOUNG):
        remove_leftover(store, left)


def sweep(world: World) -> None:
    """Repeatedly delete what killed processes left on this machine."""
    for _ in range(SWEEPS):
        pause(world, 900.0)
        Store(URL).sweep()


def promote_runs(world: World, names: list[str], told: list[str]) -> None:
    """Repeatedly promote a finished run; record the promotions that were reported as done."""
    store = Store(URL)
    for name in names * PROMOTIONS:
        pause(world, 300.0)
        if read_manifest(store, f"runs/{name}/{FINAL}", FINAL_KIND) is None:
            continue
        champion = find_champion(store, MODEL)
        if champion is None or champion.run != f"runs/{name}":
            promote(store, MODEL, f"runs/{name}", {"loss": 1.0}, "for a trial", another_use=True)
            told.append(f"runs/{name}")
