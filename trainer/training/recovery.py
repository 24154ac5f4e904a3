"""Going back to a commit while training goes on, and starting a new run from another run's weights."""

import logging
from pathlib import Path

from trainer.common.errors import RunError
from trainer.models.pretrained import find_model
from trainer.records.sealed import require_sealed
from trainer.runs.run import Run
from trainer.store.manifest import fetch_artifact
from trainer.store.names import CHECKPOINT_KIND, CONFIG
from trainer.store.storage import Store
from trainer.training.checkpoint import find_checkpoint, look_for_checkpoint
from trainer.training.loop import Session, finish_saving
from trainer.training.placing import reload_rows
from trainer.training.restoring import restore
from trainer.training.sharding import is_sharded
from trainer.training.workload import Workload

log = logging.getLogger(__name__)


def roll_back(session: Session, store: Store, run: str, workload: Workload) -> None:
    """Take weights, optimizer and step from the last commit; the data goes on from where it is.

    Raises `RunError` if there is no commit yet.
    """
    state, runtime = session.state, session.runtime
    finish_saving(session)
    checkpoint = runtime.on_first(lambda: find_checkpoint(store, run, total_steps=session.plan.total_steps))
    if checkpoint is None:
        raise RunError(
            f"training has diverged before its first checkpoint: the gradients of {state.attempts - state.step} batches were "
            "not finite; lower training.learning_rate"
        )
    folder = fetch_artifact(store, f"{run}/{checkpoint}", CHECKPOINT_KIND)
    if is_sharded(session.model):
        reload_rows(session.model, workload, runtime, folder)
    else:
        session.model.load_state_dict(workload.load_model(folder).state_dict())
    saved = restore(folder, session.objective, session.bare_optimizer, session.schedule, runtime.accelerator.scaler)
    store.release(f"{run}/{checkpoint}")
    for name, value in saved.model_dump(exclude={"attempts"}).items():
        setattr(state, name, value)
    if session.log is not None:
        session.log.rewind(state.step)
        session.log.write("rollback", state.step, attempts=state.attempts)


def find_fork(store: Store, run: Run) -> dict[str, str] | None:
    """The checkpoint that a fork starts from; None if the run is none. Raises `RunError` if the other run has none."""
    if run.origin is None:
        return None
    fingerprint = require_sealed(store, f"{run.origin}/{CONFIG}")["fingerprint"]
    # Nothing is mended in a run that another process may hold.
    checkpoint, damaged = look_for_checkpoint(store, run.origin, fingerprint)
    if checkpoint is None:
        problems = "; ".join(damaged.values()) or "train it first, or leave `resume` out"
        raise RunError(f"{store.path(run.origin)} has no checkpoint to fork from: {problems}")
    if damaged:
        log.warning("%s: starting from %s instead", "; ".join(damaged.values()), store.path(f"{run.origin}/{checkpoint}"))
    return {"run": run.origin, "checkpoint": checkpoint}


def fork_weights(store: Store, run: str) -> Path | None:
    """The folder of the weights that a forked run starts with, or None if it is no fork."""
    fork = require_sealed(store, f"{run}/{CONFIG}")["fork"]
    if fork is None:
        return None
    log.info("starting from the weights of %s/%s", fork["run"], fork["checkpoint"])
    return Path(find_model(store, f"{fork['run']}/{fork['checkpoint']}").folder)
