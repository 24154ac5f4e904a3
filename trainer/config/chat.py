"""The schema of instruction tuning: conversations, and a causal language model that learns to answer."""

from typing import Any, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from trainer.config.evaluation import TrainedHarnessSetting, check_metric
from trainer.config.labelled import BatchConfig, FinetuneTrainingConfig, SplitsConfig, TuningJob
from trainer.config.models import Quantize, TunedModelConfig, check_quantize
from trainer.config.schema import JobName, Name


class ConversationsConfig(SplitsConfig):
    """Conversations: where they are, how they are written for the model, and how much of one it reads."""

    task: str = Field(description="what each record holds")
    name: Name = Field(default="chat", description="name of the data set, used in directory names and reports")
    source: Literal["jsonl", "parquet", "hub", "disk"] = Field(
        description="jsonl, parquet: files; hub: a data set of the Hugging Face hub; disk: a folder that "
        "`save_to_disk` wrote"
    )
    test: list[str] | None = Field(
        default=None, min_length=1, description="the same for what is only measured; default: the split of that name"
    )
    chat_template: str | None = Field(
        default=None,
        description="a Jinja template, or the path of a file with one; default: that of the model's tokenizer",
    )
    context: int | None = Field(
        default=None,
        ge=2,
        description="tokens a window, and of a conversation at most: what is longer loses its end; default: 2048, or "
        "the model's positions if these are fewer",
    )
    validation_fraction: float = Field(
        default=0.1,
        gt=0.0,
        lt=1.0,
        description="where no validation is given: share held out, chosen by a hash of what comes before the first "
        "answer",
    )
    max_bad_records: int = Field(default=0, ge=0, description="records of a split that may be skipped, counted")

    @field_validator("source", mode="before")
    @classmethod
    def _holds_conversations(cls, value: Any) -> Any:
        if value == "csv":
            raise ValueError(
                "csv holds no conversations: write them as JSON Lines (data.source: jsonl), with `messages`, or a "
                "`prompt` and its `completion`, in each line; a classifier of labelled texts is trained without "
                "data.task: chat"
            )
        return value


class ChatDataConfig(ConversationsConfig):
    """Conversations whose answers are learnt."""

    task: Literal["chat"] = Field(description="chat: each record holds `messages`, or a `prompt` and its `completion`")
    packing: bool = Field(
        default=True,
        description="several short conversations in one window: positions begin anew with each, and it sees no other; "
        "false: each has a window of its own",
    )


class ChatModelConfig(TunedModelConfig):
    """The model that is tuned."""

    quantize: Quantize = None

    @model_validator(mode="after")
    def _quantised_beside_an_adapter(self) -> Self:
        check_quantize(self.quantize, self.lora)
        return self


class ChatTrainingConfig(FinetuneTrainingConfig):
    """Instruction tuning, with the defaults that are usual for it; a sample is a window."""

    learning_rate: float = Field(default=2e-5, gt=0, description="peak learning rate")
    max_grad_norm: float | None = Field(default=1.0, gt=0, description="clip the gradient's norm; null: no clipping")
    group_by_length: bool = Field(
        default=True, description="without packing: batches of conversations of about the same length, in a fixed order"
    )


class CausalEvaluationConfig(BatchConfig):
    """How a causal language model is measured."""

    harness: TrainedHarnessSetting = None


class AnswersConfig(CausalEvaluationConfig):
    """How a model that answers is measured."""

    batch: int = Field(default=16, ge=1, description="windows a forward pass")
    samples: int = Field(
        default=4,
        ge=0,
        description="held-out conversations, evenly spread, whose last answer the finished model gives itself",
    )
    new_tokens: int = Field(
        default=128, ge=1, description="tokens of such an answer at most; it takes the likeliest each time"
    )


class ConversationsJob(TuningJob):
    """Conversations and a causal language model to a tuned, evaluated model."""

    data: ConversationsConfig = Field(description="the conversations")
    model: ChatModelConfig = Field(description="the model to tune")
    evaluation: CausalEvaluationConfig = Field(default=CausalEvaluationConfig(), description="measurement")
    figures: ClassVar[tuple[str, ...]] = ("loss", "perplexity", "bits_per_byte")
    """What its models are measured by: of those that answer, the mean loss in nats a token of the answers, its
    exponential, and bits a byte.
    """

    @model_validator(mode="after")
    def _figures_are_measured(self) -> Self:
        if self.promotion is not None:
            check_metric("promotion.metric", self.promotion.metric, self.figures, self.evaluation.harness)
        check_metric("evaluation.best_by", self.evaluation.best_by, self.figures, self.evaluation.harness)
        return self


class ChatJob(ConversationsJob):
    """Conversations and a causal language model to a tuned, evaluated model."""

    name: JobName = "chat"
    data: ChatDataConfig = Field(description="the conversations")
    model: ChatModelConfig = Field(description="the model to tune")
    training: ChatTrainingConfig = Field(description="optimisation")
    evaluation: AnswersConfig = Field(default=AnswersConfig(), description="measurement")
