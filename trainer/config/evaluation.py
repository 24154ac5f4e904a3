"""Schemas of the evaluation of language models, and of the lm-eval tasks that they are evaluated on."""

from collections.abc import Sequence
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from trainer.config.schema import Schema

PREFIX = "harness/"
"""Prefix of the names of lm-eval metrics: harness/TASK/acc."""

TaskName = Annotated[str, Field(min_length=1, pattern=r"^[^\s,*/]+$")]


class HarnessConfig(Schema):
    """Tasks of lm-eval, and how they are presented to the model."""

    tasks: list[TaskName] = Field(
        min_length=1,
        description="names of tasks, groups or tags, searched in include_path first, then among those of lm-eval",
    )
    limit: int | None = Field(default=None, ge=1, description="use only the first examples of each task; default: all")
    few_shot: int | None = Field(
        default=None, ge=0, description="solved examples before each question; default: as the task specifies"
    )
    include_path: str | None = Field(
        default=None, min_length=1, description="a folder with your own tasks, as YAML files"
    )
    chat_template: bool = Field(
        default=False,
        exclude_if=lambda value: not value,
        description="use the model's chat template: each question is a user message, and solved examples are earlier "
        "turns; default: plain text",
    )

    @model_validator(mode="after")
    def _names_each_once(self) -> Self:
        if twice := sorted({name for name in self.tasks if self.tasks.count(name) > 1}):
            raise ValueError(f"tasks lists {', '.join(twice)} twice")
        return self


class TrainedHarnessConfig(HarnessConfig):
    """Tasks of lm-eval, how they are presented to the model, and when they run during training."""

    every: int | None = Field(
        default=None,
        ge=1,
        exclude_if=lambda value: value is None,
        description="steps between runs of the tasks during training, in addition to one before the first step and one "
        "after the last. If evaluation.best_by is a metric of a task, the tasks also run at each evaluation, and "
        "early_stopping counts each run of them. Default: only the finished model",
    )

    def of_finished(self) -> HarnessConfig:
        """Settings for the finished model."""
        return HarnessConfig(**self.model_dump(exclude={"every"}))


_BESIDE: Any = Field(
    exclude_if=lambda value: value is None, description="tasks of lm-eval to run as well; default: none"
)
HarnessSetting = Annotated[HarnessConfig | None, _BESIDE]
TrainedHarnessSetting = Annotated[TrainedHarnessConfig | None, _BESIDE]
"""The setting `evaluation.harness`: of an evaluation alone, and of a job that trains a language model."""


class SelectionConfig(Schema):
    """Choice of the best checkpoint."""

    best_by: str = Field(default="loss", description="the validation metric that decides which checkpoint is best")
    greater_is_better: bool | None = Field(
        default=None,
        description="whether a greater `best_by` is better; default: false for a loss or an error, else true",
    )


def check_metric(setting: str, metric: str, figures: Sequence[str], harness: HarnessConfig | None) -> None:
    """Raise `ValueError` if a setting names an unknown metric. Any metric of a configured lm-eval task is accepted."""
    tasks = [f"{PREFIX}{name}/" for name in harness.tasks] if harness else []
    if metric in figures or metric.startswith(tuple(tasks)):
        return
    named = [*figures, *(f"{begin}FIGURE" for begin in tasks)]
    hint = "; set the tasks of lm-eval in evaluation.harness" if metric.startswith(PREFIX) and not tasks else ""
    raise ValueError(f"{setting} is {metric!r}; expected one of {', '.join(named)}{hint}")


TEXT_FIGURES = ("loss", "perplexity", "bits_per_byte")
"""Metrics of a causal language model: mean loss in nats per token, its exponential, and bits per byte of text."""

MASKED_FIGURES = ("loss", "perplexity", "accuracy")
"""Metrics of a masked language model: the same over the hidden tokens, and the share of them predicted correctly."""


class EvaluationConfig(Schema):
    """Evaluation of a model on held-out documents."""

    batch: int = Field(default=16, ge=1, description="windows per forward pass")
    max_windows: int | None = Field(
        default=None, ge=1, description="windows per corpus, evenly spaced; default: all held-out text"
    )
    prompts: list[str] = Field(
        default=[],
        description="texts that the finished model continues, as samples; if a text and new_tokens exceed the model's "
        "positions, only the text's end is read",
    )
    new_tokens: int = Field(default=48, ge=1, description="tokens per continuation")
    temperature: float = Field(default=0.8, ge=0, description="sampling temperature; 0: greedy decoding")
    top_k: int = Field(default=50, ge=1, description="sample from this many most likely tokens")
    seed: int = Field(default=0, ge=0, lt=2**32, description="seed of the continuations")
    harness: HarnessSetting = None


class PretrainingEvaluationConfig(SelectionConfig, EvaluationConfig):
    """Evaluation of a model on held-out documents, during and after training."""

    during_training: int | None = Field(
        default=64, ge=1, description="windows per corpus in evaluations during training; null: all"
    )
    harness: TrainedHarnessSetting = None

    def of_finished(self) -> EvaluationConfig:
        """Settings for the finished model."""
        same = self.model_dump(include={*EvaluationConfig.model_fields}, exclude={"harness"})
        return EvaluationConfig(**same, harness=self.harness and self.harness.of_finished())
