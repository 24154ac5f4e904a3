"""The schema of trackers: tools that show the figures of many runs, beside what headrace itself records."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

Tracker = Literal["trackio", "wandb", "mlflow"]


def _each_once(names: list[Tracker]) -> list[Tracker]:
    if len(set(names)) < len(names):
        raise ValueError(f"it names one twice: {', '.join(names)}")
    return names


Tracking = Annotated[
    list[Tracker],
    AfterValidator(_each_once),
    Field(
        exclude_if=lambda value: not value,
        description="trackers that are shown the figures of training as well: trackio, wandb, mlflow; each keeps them on this "
        "machine unless its own environment variables say otherwise",
    ),
]
