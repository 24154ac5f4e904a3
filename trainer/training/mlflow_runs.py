"""MLflow runs that continue: accelerate's tracker starts a new run each time, and shows steps twice."""

import re
from collections.abc import Mapping
from typing import Any

from accelerate.tracking import MLflowTracker
from mlflow import MlflowClient
from mlflow.entities import Run

Shown = dict[str, dict[int, float]]
"""The figures that a run already shows, by name and step."""


NOT_TAKEN = re.compile(r"[^\w./ -]")
"""Characters that MLflow allows in no name, such as the comma in the name of an lm-eval figure with a filter, or those
of a class in `training.class_weights`.
"""


class ContinuedMLflow(MLflowTracker):  # type: ignore[misc]
    """A named run in a project's MLflow experiment, new or continued."""

    run_id: str | None

    def __init__(self, project: str, run: str) -> None:
        super().__init__(project, run_name=run)  # MLFLOW_EXPERIMENT_NAME and MLFLOW_RUN_ID have priority
        client = MlflowClient()
        found = client.get_run(self.run_id) if self.run_id else _find_run(client, self.experiment_name, run)
        self.run_id = found.info.run_id if found else None
        self._client = client
        self._parameters: dict[str, str] = found.data.params if found else {}
        self._shown: Shown = _shown_by(client, found) if found else {}

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """Store settings as parameters. A setting that changed since the start (operational ones may) becomes a tag,
        because parameters cannot change.
        """
        values = _with_allowed_names(values)
        super().store_init_configuration(
            {name: value for name, value in values.items() if name not in self._parameters}
        )
        for name, value in values.items():
            if str(value) != self._parameters.get(name, str(value)):
                self._client.set_tag(self.tracker.info.run_id, name, str(value))

    def log(self, values: dict[str, Any], step: int | None = None, **options: Any) -> None:
        """Log the figures of a step, except those already shown by a process that was killed after its last save."""
        if new := _not_shown(_with_allowed_names(values), step or 0, self._shown):
            super().log(new, step=step, **options)


def _find_run(client: MlflowClient, experiment_name: str, run: str) -> Run | None:
    """The run of this name in an experiment, if there is one."""
    experiment = client.get_experiment_by_name(experiment_name)
    found = client.search_runs([experiment.experiment_id], f"attributes.run_name = '{run}'") if experiment else []
    return found[0] if found else None


def _shown_by(client: MlflowClient, run: Run) -> Shown:
    return {
        name: {each.step: each.value for each in client.get_metric_history(run.info.run_id, name)}
        for name in run.data.metrics
    }


def _with_allowed_names(values: Mapping[str, Any]) -> dict[str, Any]:
    return {NOT_TAKEN.sub("-", name): value for name, value in values.items()}


def _not_shown(values: Mapping[str, Any], step: int, shown: Shown) -> dict[str, Any]:
    """The figures of a step to log: all if the loss shown there differs, else those that are not shown there yet.

    Speeds differ when a step is computed again, which is no reason to log it again.
    """
    repeated = all(shown.get(name, {}).get(step) == value for name, value in values.items() if name.endswith("/loss"))
    return {name: value for name, value in values.items() if not (repeated and step in shown.get(name, {}))}
