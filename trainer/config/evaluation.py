"""The schemas of how a language model is measured, and of what lm-eval measures of it."""

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
        min_length=1,
        description="names of tasks, groups or tags: those of include_path, else those that come with lm-eval",
    )
    limit: int | None = Field(default=None, ge=1, description="examples of each task, its first ones; default: all")
    few_shot: int | None = Field(
        default=None, ge=0, description="solved examples before each question; default: as many as the task says"
    )
    include_path: str | None = Field(
        default=None, min_length=1, description="a folder with tasks of one's own, as YAML files"
    )
    chat_template: bool = Field(
        default=False,
        exclude_if=lambda value: not value,
        description="whether each question is asked as a user's message, and solved examples as earlier turns, written "
        "by the model's chat template; default: as plain text",
    )

    @model_validator(mode="after")
    def _names_each_once(self) -> Self:
        if twice := sorted({name for name in self.tasks if self.tasks.count(name) > 1}):
            raise ValueError(f"tasks names {', '.join(twice)} twice")
        return self


class TrainedHarnessConfig(HarnessConfig):
    """Tasks of lm-eval, how they are given to the model, and when during training."""

    every: int | None = Field(
        default=None,
        ge=1,
        exclude_if=lambda value: value is None,
        description="steps between measurements during training, besides those before the first step and after the "
        "last; where a task's figure is evaluation.best_by, at each evaluation too, and each measurement is one that "
        "early_stopping counts; default: only the finished model",
    )

    def of_finished(self) -> HarnessConfig:
        """How the finished model is measured."""
        return HarnessConfig(**self.model_dump(exclude={"every"}))


_BESIDE: Any = Field(
    exclude_if=lambda value: value is None, description="what lm-eval measures besides; default: nothing"
)
HarnessSetting = Annotated[HarnessConfig | None, _BESIDE]
TrainedHarnessSetting = Annotated[TrainedHarnessConfig | None, _BESIDE]
"""The setting `evaluation.harness`, of a measurement alone, and of a job that trains a language model."""


class SelectionConfig(Schema):
    """What says which checkpoint is best."""

    best_by: str = Field(default="loss", description="the validation figure that decides which checkpoint is best")
    greater_is_better: bool | None = Field(
        default=None, description="whether a greater `best_by` is better; default: not for a loss or an error, else yes"
    )


def check_metric(setting: str, metric: str, figures: Sequence[str], harness: HarnessConfig | None) -> None:
    """Raise `ValueError` if a setting names what is not measured; which figures a task of lm-eval has, the task
    says.
    """
    tasks = [f"{PREFIX}{name}/" for name in harness.tasks] if harness else []
    if metric in figures or metric.startswith(tuple(tasks)):
        return
    named = [*figures, *(f"{begin}FIGURE" for begin in tasks)]
    hint = "; tasks of lm-eval are named in evaluation.harness" if metric.startswith(PREFIX) and not tasks else ""
    raise ValueError(f"{setting} is {metric!r}; what is measured are {', '.join(named)}{hint}")


TEXT_FIGURES = ("loss", "perplexity", "bits_per_byte")
"""What a language model is measured by: the mean loss in nats a token, its exponential, and bits a byte of text."""

MASKED_FIGURES = ("loss", "perplexity", "accuracy")
"""The same of a masked one, over the tokens that are hidden: and the share of them that it tells."""


class EvaluationConfig(Schema):
    """How a model is measured on the held-out documents."""

    batch: int = Field(default=16, ge=1, description="windows a forward pass")
    max_windows: int | None = Field(
        default=None, ge=1, description="windows a corpus, evenly spaced; default: all held-out text"
    )
    prompts: list[str] = Field(default=[], description="texts that the model continues")
    new_tokens: int = Field(default=48, ge=1, description="tokens a continuation")
    temperature: float = Field(default=0.8, ge=0, description="sampling temperature; 0 takes the likeliest token")
    top_k: int = Field(default=50, ge=1, description="sample from this many likeliest tokens")
    seed: int = Field(default=0, ge=0, lt=2**32, description="seed of the continuations")
    harness: HarnessSetting = None


class PretrainingEvaluationConfig(SelectionConfig, EvaluationConfig):
    """How a model is measured on the held-out documents, while it is trained and after."""

    during_training: int | None = Field(
        default=64, ge=1, description="windows a corpus for the evaluations during training; null: all"
    )
    harness: TrainedHarnessSetting = None

    def of_finished(self) -> EvaluationConfig:
        """How the finished model is measured."""
        same = self.model_dump(include={*EvaluationConfig.model_fields}, exclude={"harness"})
        return EvaluationConfig(**same, harness=self.harness and self.harness.of_finished())
