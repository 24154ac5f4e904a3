"""The schema of preference tuning: pairs of answers to a prompt; the model learns to prefer the chosen ones."""

from typing import Any, ClassVar, Literal, Self

from pydantic import Field, ModelWrapValidatorHandler, field_validator, model_validator

from trainer.config.chat import AnswersConfig, ChatModelConfig, ConversationsConfig, ConversationsJob
from trainer.config.labelled import FinetuneTrainingConfig
from trainer.config.schema import JobName, Name

WITH_REFERENCE = ("dpo", "ipo")
"""Losses that compare a model with its original state."""

OF_WHOLE_ANSWERS = ("dpo",)
"""Losses with rewards of whole answers; the rewards of the others are means over an answer's tokens."""

LOSS_SETTINGS = ("beta", "gamma", "label_smoothing")
"""Settings that apply to some of the losses."""

DEFAULTS: dict[str, dict[str, float]] = {"simpo": {"beta": 2.0, "gamma": 1.0}}
"""Defaults of one loss that differ from those of the others."""


class PreferenceDataConfig(ConversationsConfig):
    """Pairs of answers to a prompt."""

    name: Name = Field(default="preference", description="name of the data set, used in directory names and reports")
    task: Literal["preference"] = Field(
        description="preference: each record holds a `prompt` or `messages`, and the answers `chosen` and `rejected`"
    )

    @field_validator("source", mode="before")
    @classmethod
    def _holds_pairs(cls, value: Any) -> Any:
        if value == "csv":
            raise ValueError(
                "csv holds no conversations: write the pairs as JSON Lines (data.source: jsonl), with a `prompt`, a "
                "`chosen` and a `rejected` answer in each line"
            )
        return value


def _without_default(schema: dict[str, Any]) -> None:
    """Remove a default that depends on the loss: a form would send it with any."""
    del schema["default"]


class PreferenceTrainingConfig(FinetuneTrainingConfig):
    """Preference tuning, with its usual defaults; a sample is a pair."""

    learning_rate: float = Field(default=1e-6, gt=0, description="peak learning rate")
    max_grad_norm: float | None = Field(default=1.0, gt=0, description="clip the gradient's norm; null: no clipping")
    group_by_length: bool = Field(
        default=True, description="batches of pairs of about the same length, in a fixed order"
    )
    loss: Literal["dpo", "ipo", "simpo", "orpo"] = Field(
        default="dpo",
        description="dpo, ipo: compare with the original model (the reference); simpo, orpo: no reference",
    )
    beta: float = Field(
        default=0.1,
        gt=0,
        le=100,
        json_schema_extra=_without_default,
        description="dpo, ipo: strength of the KL penalty that keeps the model near its reference; simpo: the scale of "
        "rewards (default there: 2); orpo: the weight of the odds ratio beside the loss of the chosen answers",
    )
    gamma: float | None = Field(
        default=None, ge=0, le=100, description="simpo: target margin between the rewards (default there: 1)"
    )
    label_smoothing: float = Field(
        default=0.0, ge=0, lt=0.5, description="dpo: the assumed probability that chosen and rejected are swapped"
    )

    @model_validator(mode="wrap")
    @classmethod
    def _defaults_of_the_loss(cls, values: Any, make: ModelWrapValidatorHandler[Self]) -> Self:
        """Add the defaults of the loss, also for null. They do not count as set: another loss has others."""
        if not isinstance(values, dict):
            return make(values)
        usual = next((own for loss, own in DEFAULTS.items() if values.get("loss") == loss), {})
        added = {name: value for name, value in usual.items() if values.get(name) is None}
        made = make({**values, **added})
        made.model_fields_set.difference_update(added)
        return made

    @model_validator(mode="after")
    def _go_with_the_loss(self) -> Self:
        if self.gamma is not None and self.loss != "simpo":
            raise ValueError(f"gamma requires loss simpo, not {self.loss!r}")
        if self.label_smoothing and self.loss != "dpo":
            raise ValueError(f"label_smoothing requires loss dpo, not {self.loss!r}")
        return self

    @property
    def needs_reference(self) -> bool:
        """Whether the loss compares the model with its original state."""
        return self.loss in WITH_REFERENCE


class PreferenceEvaluationConfig(AnswersConfig):
    """How the model is measured."""

    batch: int = Field(default=8, ge=1, description="pairs a forward pass")
    samples: int = Field(
        default=4,
        ge=0,
        description="held-out prompts, evenly spread, that the original and the final model answer",
    )


class PreferenceJob(ConversationsJob):
    """A pretrained causal language model tuned on pairs of answers, and evaluated."""

    name: JobName = "preference"
    data: PreferenceDataConfig = Field(description="the pairs of answers")
    model: ChatModelConfig = Field(description="the model to tune")
    training: PreferenceTrainingConfig = Field(description="optimisation")
    evaluation: PreferenceEvaluationConfig = Field(default=PreferenceEvaluationConfig(), description="measurement")
    figures: ClassVar[tuple[str, ...]] = ("loss", "accuracy", "margin", "reward_chosen", "reward_rejected")
    """Of held-out pairs: the mean loss; the share of pairs whose chosen answer has the greater reward; the mean
    difference of the two rewards; and the mean of each reward.
    """
