"""Repair of lost or damaged records of a run: the pointers to its checkpoints, its plan and its job.

A pointer only repeats the training state (the best checkpoint), the plan (the end of an epoch) and the manifests of
checkpoints. So a checkpoint without its pointer is not necessarily unneeded.

The run's command rewrites a damaged config.json: it knows everything that the file holds, and the run's final model and
checkpoints record which run they belong to. Only the file of a fork records which weights it started from; it must be
restored from a copy.
"""

import logging
import re
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from trainer.common.errors import ArtifactError
from trainer.config.runs import RunJob
from trainer.records.fields import list_changes
from trainer.records.plans import Plan
from trainer.records.sealed import read_listed, read_pointer, read_sealed, write_pointer, write_sealed
from trainer.records.shapes import folder_name
from trainer.store.manifest import read_manifest, require_manifest
from trainer.store.names import BEST, CHECKPOINT_KIND, CONFIG, ENVIRONMENT, EPOCHS, FINAL, FINAL_KIND, LAST, PLAN
from trainer.store.storage import Store
from trainer.training.checkpoint import (
    EndedEpoch,
    TrainState,
    committed_steps,
    ended_epoch,
    epoch_pointer,
    find_epochs,
    find_problem,
    state_name,
)
from trainer.training.identity import Run, TrainingData, describe_run

log = logging.getLogger(__name__)


def repair_pointers(
    store: Store,
    run: str,
    steps: list[int],
    state: TrainState,
    ended: EndedEpoch,
    figure: str,
    keep_epochs: int | None = None,
) -> set[int]:
    """Write the pointers that the committed `steps` should have; returns all steps with a pointer.

    Among ends of epochs, these are the newest `keep_epochs`, or all. Raises `ArtifactError` for a damaged pointer whose
    target is unknown, and if a checkpoint is removed meanwhile.
    """
    wanted = {LAST: steps[-1]} if steps else {}
    if state.best_step is not None:
        wanted[BEST] = state.best_step
    epochs = find_epochs(store, run)
    wanted |= {f"{EPOCHS}/{name}": step for name, step in epochs.items()}
    marked = {step for pointer, step in wanted.items() if pointer.startswith(EPOCHS)}
    ends = sorted({*epochs.values(), *(step for step in steps if ended(step) is not None)}, reverse=True)[:keep_epochs]
    for step in steps:
        if (epoch := ended(step)) is not None and step in ends and step not in marked:
            wanted[epoch_pointer(epoch, step, figure, _scores(store, run, step))] = step
    pointers = dict.fromkeys([*wanted, BEST, *(f"{EPOCHS}/{name}" for name in epochs)])
    named = {_repaired(store, run, pointer, wanted.get(pointer), steps) for pointer in pointers}
    return {step for step in named if step is not None}


def find_best(store: Store, run: str, state: TrainState) -> int | None:
    """The step of the run's best checkpoint, from the training state; None if nothing was measured.

    Rewrites its pointer if that is lost. Raises `ArtifactError` if the checkpoint is missing or damaged.
    """
    best, steps = state.best_step, committed_steps(store, run)
    if best is None:
        return None
    place = store.path(f"{run}/{folder_name(best)}")
    earlier = _repaired(store, run, BEST, best if best in steps else None, steps)
    if best not in steps and earlier is not None and earlier < best:
        log.warning("%s, the best checkpoint, was never saved: using the best that was, step %d", place, earlier)
        best = earlier
    problem = find_problem(store, f"{run}/{folder_name(best)}")
    if problem is not None:
        raise ArtifactError(
            f"the best checkpoint of {store.path(run)}, of step {best}, is not intact: {problem}. training.final: best "
            "publishes it: restore it from a copy, or train again with another `run`"
        )
    return best


def warn_of_damaged_best(store: Store, run: str, state: TrainState) -> None:
    """Warn, when training continues, if the best checkpoint so far could not be published at the end."""
    try:
        find_best(store, run, state)
    except ArtifactError as error:
        log.warning("%s, before the run ends; a later step may still become the best", error)


def repair_plan(store: Store, run: str, plan: Plan) -> None:
    """Write a run's plan, which follows from its data and its job, with a warning if the earlier one was damaged."""
    try:
        read_sealed(store, f"{run}/{PLAN}")
    except ArtifactError as error:
        log.warning("%s: rewritten", error)
    write_sealed(store, f"{run}/{PLAN}", plan.model_dump())


def repair_finished(
    store: Store, run: str, make_plan: Callable[[], Plan], figure: str, keep_epochs: int | None = None
) -> None:
    """Repair a finished run, which no process trains: its plan, and the pointers to its remaining checkpoints."""
    try:
        plan = read_sealed(store, f"{run}/{PLAN}")
    except ArtifactError:
        plan = None
    if plan is None:
        repair_plan(store, run, made := make_plan())
        plan = made.model_dump()
    steps, every = committed_steps(store, run), plan["steps_per_epoch"]
    try:
        state = _read_state(store, run, steps[-1]) if steps else None
        if state is not None:
            repair_pointers(store, run, steps, state, partial(ended_epoch, every=every), figure, keep_epochs)
    except ArtifactError as error:
        log.warning("%s", error)  # the model is published, and readers of that file will report the damage


def _repaired(store: Store, run: str, pointer: str, step: int | None, steps: list[int]) -> int | None:
    """The step of a pointer, which is first corrected to `step` if that is committed; None if there is no pointer."""
    known = step is not None and step in steps
    fault = f"{store.path(f'{run}/{pointer}')} is missing"
    try:
        target = read_pointer(store, f"{run}/{pointer}")
        if target is not None:
            fault = f"{store.path(f'{run}/{pointer}')} points to step {target.step}"
    except ArtifactError as error:
        if not known:
            raise
        target, fault = None, str(error)
    if step is None or not known:
        return target.step if target else None
    if target is None or target.step != step:
        write_pointer(store, f"{run}/{pointer}", step, _scores(store, run, step))
        log.warning("%s: rewritten, for step %d", fault, step)
    return step


def _scores(store: Store, run: str, step: int) -> dict[str, float] | None:
    """The scores of a committed checkpoint. Raises `ArtifactError` if another process has removed it since."""
    key = f"{run}/{folder_name(step)}"
    manifest = require_manifest(store, key, CHECKPOINT_KIND, "was removed while pointers to it were written")
    scores: dict[str, float] | None = manifest.details["scores"]
    return scores


def _read_state(store: Store, run: str, step: int) -> TrainState | None:
    """The training state of a checkpoint."""
    manifest = read_manifest(store, f"{run}/{folder_name(step)}", CHECKPOINT_KIND)
    digests = manifest.digests() if manifest else {}
    name = state_name(digests)
    saved = read_listed(store, f"{run}/{folder_name(step)}/{name}", digests.get(name))
    return TrainState(**saved["state"]) if saved else None


FORK = re.compile(r"-fork-[0-9a-f]{8}$")
KEPT = f"damaged-{CONFIG}"
"""The name under which the damaged file is kept."""


def find_config_fault(store: Store, run: Run) -> str | None:
    """The damage of a config.json that the run's command can rewrite; None if it is intact or missing.

    Raises `ArtifactError` if it is damaged and cannot be derived.
    """
    try:
        read_sealed(store, f"{run.key}/{CONFIG}")
    except ArtifactError as error:
        is_fork = run.origin is not None or FORK.search(run.key) is not None
        if is_fork or not _owners(store, run.key) <= {run.fingerprint}:
            raise
        return str(error)
    return None


def repair_config(store: Store, run: Run, job: RunJob, data: TrainingData) -> None:
    """Rewrite a damaged config.json, with a warning. Raises `ArtifactError` as `find_config_fault` does."""
    fault = find_config_fault(store, run)
    if fault is None:
        return
    store.write_bytes(f"{run.key}/{KEPT}", store.read_bytes(f"{run.key}/{CONFIG}"))
    write_sealed(store, f"{run.key}/{CONFIG}", describe_run(run, job, data, None))
    log.warning("%s: rewritten; the damaged file is kept as %s", fault, KEPT)


def _owners(store: Store, key: str) -> set[str]:
    """The fingerprints of the runs to which a folder's artifacts belong, as far as they can be read."""
    found = set()
    places = [(f"{key}/{folder_name(step)}", CHECKPOINT_KIND) for step in committed_steps(store, key)]
    for place, kind in [(f"{key}/{FINAL}", FINAL_KIND), *places]:
        try:
            manifest = read_manifest(store, place, kind)
        except ArtifactError as error:
            log.warning("%s", error)
            continue
        if manifest is not None:
            found.add(manifest.details["run"] if kind == FINAL_KIND else manifest.fingerprint)
    return found


UNTIL = "until step "
"""Begins the names of the parts of environment.json about earlier steps; a number follows."""


def note_environment(store: Store, run: str, environment: dict[str, Any], step: int) -> None:
    """Write a run's environment.json. If the run continues at a step in another environment, the file also says what
    was different until then.
    """
    before: dict[str, Any] = {}
    with suppress(ArtifactError):  # a damaged one is replaced
        before = read_sealed(store, f"{run}/{ENVIRONMENT}") or {} if step else {}
    former = {name: before.pop(name) for name in list(before) if name.startswith(UNTIL)}
    # Of processes that were killed before they saved a later step; it is not known which of their steps remain.
    here = [
        clause
        for name in list(former)
        if int(name.removeprefix(UNTIL)) >= step
        for clause in former.pop(name).split("; ")
    ]
    known = {name: value for name, value in environment.items() if name in before}  # others may be of a newer version
    changes = dict.fromkeys([*here, *list_changes(before, known)])
    note = {f"{UNTIL}{step}": "; ".join(changes)} if changes else {}
    write_sealed(store, f"{run}/{ENVIRONMENT}", {**environment, **former, **note})
