"""The schema of what lm-eval, the community's harness, measures of a model."""

from typing import Annotated, Self

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

    @model_validator(mode="after")
    def _names_each_once(self) -> Self:
        if twice := sorted({name for name in self.tasks if self.tasks.count(name) > 1}):
            raise ValueError(f"tasks names {', '.join(twice)} twice")
        return self
