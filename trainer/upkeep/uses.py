"""What a run's model is for: its kind and its task, and the classes that it tells apart.

Who names a champion gets the model that is it now, so that one champion takes the place of another of the same use only.
"""

import logging
from typing import Any, NamedTuple

from trainer.common.errors import ArtifactError
from trainer.records.kinds import run_kind, task_of
from trainer.records.sealed import read_listed, read_sealed
from trainer.store.names import CONFIG, FINAL
from trainer.store.storage import Store
from trainer.training.identity import final_manifest

log = logging.getLogger(__name__)

NAMED = 5
"""Classes that are named of those that a model has."""

CLASSIFY = ("classification", "multi-label", "tokens")


class Use(NamedTuple):
    """A model's kind with its task, in words, and its classes in their order; none where it has none."""

    kind: str
    classes: tuple[str, ...] = ()

    def __str__(self) -> str:
        if not self.classes:
            return self.kind
        more = f" and {len(self.classes) - NAMED} more" if len(self.classes) > NAMED else ""
        return f"{self.kind}, with the classes {', '.join(self.classes[:NAMED])}{more}"


def other_use(store: Store, run: str, champion: str) -> str | None:
    """That a run's model is for another use than the champion's; None if it is not, or their records do not tell."""
    uses = [_read_use(store, each) for each in (run, champion)]
    if None in uses or uses[0] == uses[1]:
        return None
    return f"{run} is for another use ({uses[0]}) than the champion {champion} ({uses[1]})"


def _read_use(store: Store, run: str) -> Use | None:
    try:
        config, final = read_sealed(store, f"{run}/{CONFIG}"), final_manifest(store, run)
        if config is None or final is None:
            return None
        kind, task = run_kind(config), task_of(config["job"])
        objective = config["job"].get("training", {}).get("objective", "causal")
        model = read_listed(store, f"{run}/{FINAL}/config.json", final.digests().get("config.json")) or {}
    except (ArtifactError, ValueError) as error:
        log.warning("what the model of %s is for is not known: %s", store.path(run), error)
        return None
    return Use(f"{kind.name}, {task or objective}", _classes_of(model) if task in CLASSIFY else ())


def _classes_of(model: dict[str, Any]) -> tuple[str, ...]:
    """The names of a model's classes, in the order of their ids."""
    names: dict[str, str] = model.get("id2label") or {}
    return tuple(names[each] for each in sorted(names, key=int))
