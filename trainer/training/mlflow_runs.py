"""Runs in MLflow that go on where they stood: accelerate's tracker begins each anew, and shows steps twice."""

import re
from collections.abc import Mapping
from typing import Any

from accelerate.tracking import MLflowTracker
from mlflow import MlflowClient

Shown = dict[str, dict[int, float]]
"""The figures that a run shows, by their names and steps."""


NOT_TAKEN = re.compile(r"[^\w./ -]")
"""Characters that MLflow takes in no name, such as the comma of a figure of lm-eval that goes through a filter."""


class ContinuedMLflow(MLflowTracker):  # type: ignore[misc]
    """A run of a name in MLflow's experiment of a project, begun or gone on with."""

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
        """Show settings; one that changed since the run began, as operational ones may, is a tag, for parameters
        stay.
        """
        super().store_init_configuration(
            {name: value for name, value in values.items() if name not in self._parameters}
        )
        for name, value in values.items():
            if str(value) != self._parameters.get(name, str(value)):
                self._client.set_tag(self.tracker.info.run_id, name, str(value))

    def log(self, values: dict[str, Any], step: int | None = None, **options: Any) -> None:
        """Show the figures of a step, but for those that a process showed before it was killed after its last save."""
        values = {NOT_TAKEN.sub("-", name): value for name, value in values.items()}
        if new := _not_shown(values, step or 0, self._shown):
            super().log(new, step=step, **options)


def _not_shown(values: Mapping[str, Any], step: int, shown: Shown) -> dict[str, Any]:
    """Figures of a step that are to be shown: all if the loss there is another, else those that have nothing there yet.

    Speeds differ where a step is computed again, and are no reason to show it again.
    """
    repeated = all(shown.get(name, {}).get(step) == value for name, value in values.items() if name.endswith("/loss"))
    return {name: value for name, value in values.items() if not (repeated and step in shown.get(name, {}))}
