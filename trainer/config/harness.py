"""The schema of what lm-eval, the community's harness, measures of a model."""

from collections.abc import Sequence
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from trainer.config.schema import Schema

PREFIX = "harness/"
"""What the names of its figures begin with: harness/TASK/acc."""

TaskName = Annotated[str, Field(min_length=1, pattern=r"^[^\s,*/]+$")]


class HarnessConfig(Schema):
    """Tasks of lm-eval, and how they are given to the model."""

    tasks: list[TaskName] = Field(
        min_length=1, description="names of tasks, groups or tags: those of include_path, else those that come with lm-eval"
    )
    limit: int | None = Field(default=None, ge=1, description="examples of each task, its first ones; default: all")
    few_shot: int | None = Field(
        default=None, ge=0, description="solved examples before each question; default: as many as the task says"
    )
    include_path: str | None = Field(default=None, min_length=1, description="a folder with tasks of one's own, as YAML files")
    chat_template: bool = Field(
        default=False,
        exclude_if=lambda value: not value,
        description="whether each question is asked as a user's message, and solved examples as earlier turns, written by the "
        "model's chat template; default: as plain text",
    )

    @model_validator(mode="after")
    def _names_each_once(self) -> Self:
        if twice := sorted({name for name in self.tasks if self.tasks.count(name) > 1}):
            raise ValueError(f"tasks names {', '.join(twice)} twice")
        return self


HarnessSetting = Annotated[
    HarnessConfig | None,
    Field(exclude_if=lambda value: value is None, description="what lm-eval measures besides; default: nothing"),
]
"""The setting `evaluation.harness` of a language model's job."""


def without_harness(evaluation: Schema) -> dict[str, Any]:
    """All settings of an evaluation but those of lm-eval, which measures in a stage of its own."""
    return evaluation.model_dump(mode="json", exclude={"harness"})


def check_metric(metric: str, figures: Sequence[str], harness: HarnessConfig | None) -> None:
    """Raise `ValueError` for a gate on what is not measured; which figures a task of lm-eval has, the task says."""
    tasks = [f"{PREFIX}{name}/" for name in harness.tasks] if harness else []
    if metric in figures or metric.startswith(tuple(tasks)):
        return
    named = [*figures, *(f"{begin}FIGURE" for begin in tasks)]
    hint = "; tasks of lm-eval are named in evaluation.harness" if metric.startswith(PREFIX) and not tasks else ""
    raise ValueError(f"promotion.metric is {metric!r}; what is measured are {', '.join(named)}{hint}")
