"""The checkpoint of another run that a fork takes its weights from, as the fork's config.json records it."""

import logging
from pathlib import Path

from trainer.common.errors import RunError
from trainer.models.pretrained import find_model
from trainer.models.tensor_files import of_optimizer
from trainer.records.sealed import require_sealed
from trainer.store.manifest import content_of, read_manifest, require_manifest
from trainer.store.names import CHECKPOINT_KIND, CONFIG
from trainer.store.storage import Store
from trainer.training.checkpoint import look_for_checkpoint
from trainer.training.identity import Run

log = logging.getLogger(__name__)


def find_fork(store: Store, run: Run) -> dict[str, str] | None:
    """The checkpoint that a fork starts from; None if it is no fork. Raises `RunError` if the other run has none."""
    if run.origin is None:
        return None
    fingerprint = require_sealed(store, f"{run.origin}/{CONFIG}")["fingerprint"]
    # Nothing is repaired in a run that another process may hold.
    checkpoint, damaged = look_for_checkpoint(store, run.origin, fingerprint)
    if checkpoint is None:
        problems = "; ".join(damaged.values()) or "train it first, or remove `resume`"
        raise RunError(f"{store.path(run.origin)} has no checkpoint to fork from: {problems}")
    if damaged:
        log.warning(
            "%s: starting from %s instead", "; ".join(damaged.values()), store.path(f"{run.origin}/{checkpoint}")
        )
    weights = _digest_weights(store, f"{run.origin}/{checkpoint}")
    return {"run": run.origin, "checkpoint": checkpoint, "fingerprint": fingerprint, "weights": weights}


def fork_weights(store: Store, run: str) -> Path | None:
    """The folder of the weights that a fork starts from; None if the run is no fork.

    Raises `RunError` if the checkpoint is not the one that the fork began with, as after another training of its run,
    or is gone.
    """
    fork = require_sealed(store, f"{run}/{CONFIG}")["fork"]
    if fork is None:
        return None
    place = f"{fork['run']}/{fork['checkpoint']}"
    if read_manifest(store, place, CHECKPOINT_KIND) is None:
        raise RunError(
            f"{store.path(place)}, whose weights {store.path(run)} starts from, is gone: its run was removed, or has "
            "continued and deleted older checkpoints, and this fork has saved none of its own yet. Remove "
            f"{store.path(run)} to fork the newest checkpoint of that run, if it still exists, or restore this one "
            "from a copy"
        )
    folder = Path(find_model(store, place).folder)
    if fork.get("weights") not in (None, _digest_weights(store, place)):
        raise RunError(
            f"{store.path(place)} has other weights than when {store.path(run)} was forked from it; remove "
            f"{store.path(run)} to fork it again, or restore the checkpoint from a copy"
        )
    log.info("starting from the weights of %s", place)
    return folder


def _digest_weights(store: Store, checkpoint: str) -> str:
    """The digest of the files with weights; the state beside them changes if an interrupted evaluation is completed."""
    files = require_manifest(store, checkpoint, CHECKPOINT_KIND, "was removed").files
    return content_of(each for each in files if each.name.endswith(".safetensors") and not of_optimizer(each.name))
