"""Trackers that are shown what a run records: Trackio, Weights & Biases, MLflow, by accelerate's classes for them.

Each keeps what it is told on this machine, unless its own environment variables say otherwise. A run that continues goes on
under the same name there. For a tracker that fails training does not end: it is warned of, and told nothing more.
"""

import importlib.util
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from trainer.common.errors import ConfigError, brief
from trainer.common.stopping import StopRequested
from trainer.config.training import Tracker
from trainer.records.fields import flatten
from trainer.runs.board import curves_of
from trainer.runs.board_messages import HYPERPARAMETERS

log = logging.getLogger(__name__)

OFFLINE = "offline"
PACKAGES: dict[Tracker, str] = {"trackio": "trackio", "wandb": "wandb", "mlflow": "mlflow"}


def check_trackers(names: Sequence[Tracker]) -> None:
    """Raise `ConfigError` for a tracker that is not installed."""
    for name in names:
        if importlib.util.find_spec(PACKAGES[name]) is None:
            raise ConfigError(f"tracking names {name}, which is not installed: pip install {PACKAGES[name]}, or leave it out")


class Trackers:
    """Shows a run's figures to trackers, for the length of a block; of several ranks only the first has them.

    `project` is what they keep the run under, with those of the same job; `run` names it there.
    """

    def __init__(self, names: Sequence[Tracker], project: str, run: str, job: Mapping[str, Any]) -> None:
        self._trackers: dict[str, Any] = {}
        for name in names:
            self._attempt(name, lambda name=name: self._start(name, project, run, job))  # type: ignore[misc]

    def show(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
        """Show a record's figures."""
        if self._trackers and (curves := curves_of(kind, values)):
            for name, tracker in list(self._trackers.items()):
                self._attempt(name, lambda tracker=tracker: tracker.log(curves, step=step))  # type: ignore[misc]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for name, tracker in list(self._trackers.items()):
            self._attempt(name, tracker.finish)

    def _start(self, name: Tracker, project: str, run: str, job: Mapping[str, Any]) -> None:
        tracker = MAKERS[name](project, run)
        tracker.start()
        self._trackers[name] = tracker
        tracker.store_init_configuration(_settings(job))

    def _attempt(self, name: str, work: Callable[[], object]) -> None:
        """Do something with a tracker. What it prints goes where this process prints, as its other threads print there too."""
        try:
            work()
        except StopRequested:
            raise
        except Exception as error:  # each fails in its own way
            self._trackers.pop(name, None)
            log.warning("tracking: %s fails, and is told nothing more: %s: %s", name, type(error).__name__, brief(error))


def _trackio(project: str, run: str) -> Any:
    from accelerate.tracking import TrackioTracker

    return TrackioTracker(project, name=run, resume="allow", embed=False)


def _wandb(project: str, run: str) -> Any:
    from accelerate.tracking import WandBTracker

    quiet = {"silent": True, "console": "off"}
    mode = os.environ.get("WANDB_MODE", OFFLINE)
    return WandBTracker(project, id=run, name=run, resume="allow", mode=mode, settings=quiet)


def _mlflow(project: str, run: str) -> Any:
    from trainer.training.mlflow_runs import ContinuedMLflow

    return ContinuedMLflow(project, run)


MAKERS: dict[Tracker, Callable[[str, str], Any]] = {"trackio": _trackio, "wandb": _wandb, "mlflow": _mlflow}


def _settings(job: Mapping[str, Any]) -> dict[str, Any]:
    """A job's hyperparameters by the paths of their fields, as TensorBoard has them too."""
    told = flatten({part: job[part] for part in HYPERPARAMETERS})
    return {
        name: value if isinstance(value, bool | int | float | str) else str(value)
        for name, value in told.items()
        if value is not None
    }
