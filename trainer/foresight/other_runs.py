"""What a store holds of runs of the same name, where a job would begin another: the most similar, and those left unfinished."""

import logging
import re
from collections.abc import Callable
from typing import Any

from trainer.common.errors import ArtifactError
from trainer.foresight.status import NONE_YET
from trainer.records.fields import tell_changes
from trainer.records.lease import is_held
from trainer.records.sealed import read_sealed, require_sealed
from trainer.store.names import CONFIG, PLAN
from trainer.store.storage import Store
from trainer.training.identity import Run, final_manifest
from trainer.training.pointer_repair import committed_steps

log = logging.getLogger(__name__)


def intact(read: Callable[..., dict[str, Any] | None], *place: Any) -> dict[str, Any] | None:
    """What a record holds; None if there is none, or it is damaged, so that it says nothing of what was done before."""
    try:
        return read(*place)
    except ArtifactError as error:
        log.warning("%s", error)
        return None


def explain_new(store: Store, name: str, run: Run) -> list[str]:
    """What differs from the most similar run of a job's name, and which of those would be left behind unfinished."""
    pattern = re.compile(re.escape(name) + r"-[0-9a-f]{8}")
    keys = [f"runs/{each}" for each in store.names("runs") if pattern.fullmatch(each)]
    configs = {key: config for key in keys if (config := intact(read_sealed, store, f"{key}/{CONFIG}"))}
    if run.origin is not None:
        configs[run.origin] = require_sealed(store, f"{run.origin}/{CONFIG}")
    differences = {key: tell_changes(config["identity"], run.identity) for key, config in configs.items()}
    left = [line for key, different in differences.items() if (line := _tell_left(store, key, different))]
    if run.origin is not None:
        return [f"a fork of {run.origin}", *differences[run.origin], *left]
    return [*min(differences.values(), key=len, default=[NONE_YET]), *left]


def _tell_left(store: Store, key: str, different: list[str]) -> str | None:
    """That a run stays unfinished, where it stands, and why it is not continued; None of a finished one, and of one at work."""
    try:
        steps = committed_steps(store, key)
        if not steps or final_manifest(store, key) is not None or is_held(store, key):
            return None
    except ArtifactError as error:
        log.warning("%s", error)
        return None
    plan = intact(read_sealed, store, f"{key}/{PLAN}")
    planned = f" of {plan['total_steps']:,}" if plan else ""
    return f"leaves {key} behind unfinished, at step {steps[-1]:,}{planned}; it differs in {', '.join(different)}"
