"""A run's config.json that was damaged, written anew by the command that the run is of.

That command gives all that it holds, and the run's final model and checkpoints say that they are of it. Of a fork it alone
tells which weights that began with: there a copy must be put back.
"""

import logging
import re

from trainer.common.errors import ArtifactError
from trainer.records.sealed import folder_name, read_sealed, write_sealed
from trainer.runs.run import Run, TrainingData, TrainingJob, describe_run
from trainer.store.manifest import read_manifest
from trainer.store.names import CHECKPOINT_KIND, CONFIG, FINAL, FINAL_KIND
from trainer.store.storage import Store
from trainer.training.mending import committed_steps

log = logging.getLogger(__name__)

FORK = re.compile(r"-fork-[0-9a-f]{8}$")
KEPT = f"damaged-{CONFIG}"
"""What the damaged file is kept as."""


def find_config_fault(store: Store, run: Run) -> str | None:
    """What is wrong with a config.json that the run's command can write anew; None if it is whole, or there is none.

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


def mend_config(store: Store, run: Run, job: TrainingJob, data: TrainingData) -> None:
    """Write a damaged config.json anew, with a warning. Raises `ArtifactError` as `find_config_fault` does."""
    fault = find_config_fault(store, run)
    if fault is None:
        return
    store.write_bytes(f"{run.key}/{KEPT}", store.read_bytes(f"{run.key}/{CONFIG}"))
    write_sealed(store, f"{run.key}/{CONFIG}", describe_run(run, job, data, None))
    log.warning("%s: written anew, and kept as %s", fault, KEPT)


def _owners(store: Store, key: str) -> set[str]:
    """The fingerprints of the runs that what a folder holds is of, as far as that can be read."""
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
