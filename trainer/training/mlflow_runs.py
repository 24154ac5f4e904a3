"""MLflow runs that continue: accelerate's tracker starts a new run each time, and shows steps twice."""

import re
from collections.abc import Mapping
from typing import Any

from accelerate.tracking import MLflowTracker
from mlflow import MlflowClient

Shown = dict[str, dict[int, float]]
"""The figures that a run already shows, by name and step."""


NOT_TAKEN = re.compile(r"[^\w./ -]")
"""Characters that MLflow allows in no name, such as the comma in the name of an lm-eval figure with a filter."""


class ContinuedMLflow(MLflowTracker):  # type: ignore[misc]
    """A named run in a project's MLflow experiment, new or continued."""

    def __init__(self, project: str, run: str) -> None:
        client = MlflowClient()
        experiment = client.get_experiment_by_name(project)
        found = client.search_runs([experiment.experiment_id], f"attributes.run_name = '{run}'") if experiment else []
        super().__init__(project, run_name=run, run_id=found[0].info.run_id if found else None)
        self._client = client
        self._parameters: dict[str, str] = found[0].data.params if found else {}
        names = found[0].data.metrics if found else ()
        self._shown: Shown = {
            name: {each.step: each.value for each in client.get_metric_history(found[0].info.run_id, name)}
            for name in names
        }

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """Store settings as parameters. A setting that changed since the start (operational ones may) becomes a tag,
        because parameters cannot change.
        """
        super().store_init_configuration(
            {name: value for name, value in values.items() if name not in self._parameters}
        )
        for name, value in values.items():
            if str(value) != self._parameters.get(name, str(value)):
                self._client.set_tag(self.tracker.info.run_id, name, str(value))

    def log(self, values: dict[str, Any], step: int | None = None, **options: Any) -> None:
        """Log the figures of a step, except those already shown by a process that was killed after its last save."""
        values = {NOT_TAKEN.sub("-", name): value for name, value in values.items()}
        if new := _not_shown(values, step or 0, self._shown):
            super().log(new, step=step, **options)


def _not_shown(values: Mapping[str, Any], step: int, shown: Shown) -> dict[str, Any]:
    """The figures of a step to log: all if the loss shown there differs, else those that are not shown there yet.

    Speeds differ when a step is computed again, which is no reason to log it again.
    """
    repeated = all(shown.get(name, {}).get(step) == value for name, value in values.items() if name.endswith("/loss"))
    return {name: value for name, value in values.items() if not (repeated and step in shown.get(name, {}))}
