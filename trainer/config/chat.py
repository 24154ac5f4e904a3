"""Schema of instruction tuning: conversations, and a causal language model that learns to answer."""

from typing import Any, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from trainer.config.evaluation import TrainedHarnessSetting, check_metric
from trainer.config.labelled import BatchConfig, FinetuneTrainingConfig, SplitsConfig, TuningJob
from trainer.config.models import Quantize, TunedModelConfig, check_quantize
from trainer.config.schema import JobName, Name


class ConversationsConfig(SplitsConfig):
    """Conversations: their location, their chat template, and the number of tokens read from each."""

    task: str = Field(description="what each record holds")
    name: Name = Field(default="chat", description="name of the data set, used in directory names and reports")
    source: Literal["jsonl", "parquet", "hub", "disk"] = Field(
        description="jsonl, parquet: files; hub: a data set of the Hugging Face hub; disk: a folder written by "
        "`save_to_disk`"
    )
    test: list[str] | None = Field(
        default=None,
        min_length=1,
        description="the same for the test split, which is only evaluated; default: the split named test",
    )
    chat_template: str | None = Field(
        default=None,
        description="a Jinja template, or the path of a file with one; default: the tokenizer's template",
    )
    context: int | None = Field(
        default=None,
        ge=2,
        description="tokens per window; longer conversations are cut at the end; default: 2048, or the model's maximum "
        "positions if fewer",
    )
    validation_fraction: float = Field(
        default=0.1,
        gt=0.0,
        lt=1.0,
        description="if validation is not set: share held out, chosen by a hash of the text before the first answer",
    )
    max_bad_records: int = Field(
        default=0, ge=0, description="invalid records per split that are skipped and counted; one more is an error"
    )

    @field_validator("source", mode="before")
    @classmethod
    def _holds_conversations(cls, value: Any) -> Any:
        if value == "csv":
            raise ValueError(
                "csv cannot hold conversations: write them as JSON Lines (data.source: jsonl), with `messages`, or "
                "`prompt` and `completion`, in each line; to train a classifier on labelled texts, remove data.task: "
                "chat"
            )
        return value


class ChatDataConfig(ConversationsConfig):
    """Conversations whose answers the model learns."""

    task: Literal["chat"] = Field(description="chat: each record holds `messages`, or a `prompt` and its `completion`")
    packing: bool = Field(
        default=True,
        description="pack several short conversations into one window; positions restart at 0 in each, and "
        "conversations do not attend to each other; false: one conversation per window",
    )


class ChatModelConfig(TunedModelConfig):
    """The model to tune."""

    quantize: Quantize = None

    @model_validator(mode="after")
    def _quantised_beside_an_adapter(self) -> Self:
        check_quantize(self.quantize, self.lora)
        return self


class ChatTrainingConfig(FinetuneTrainingConfig):
    """Instruction tuning, with its usual defaults; a sample is a window."""

    learning_rate: float = Field(default=2e-5, gt=0, description="peak learning rate")
    max_grad_norm: float | None = Field(default=1.0, gt=0, description="clip the gradient's norm; null: no clipping")
    group_by_length: bool = Field(
        default=True, description="without packing: batch conversations of similar length, in a fixed order"
    )


class CausalEvaluationConfig(BatchConfig):
    """Evaluation of a causal language model."""

    harness: TrainedHarnessSetting = None


class AnswersConfig(CausalEvaluationConfig):
    """Evaluation of a model that answers."""

    batch: int = Field(default=16, ge=1, description="windows per forward pass")
    samples: int = Field(
        default=4,
        ge=0,
        description="held-out conversations, evenly spaced, whose last answer the finished model generates for the "
        "report",
    )
    new_tokens: int = Field(default=128, ge=1, description="maximum tokens per generated answer; decoding is greedy")


class ConversationsJob(TuningJob):
    """Conversations and a causal language model to a tuned, evaluated model."""

    data: ConversationsConfig = Field(description="the conversations")
    model: ChatModelConfig = Field(description="the model to tune")
    evaluation: CausalEvaluationConfig = Field(default=CausalEvaluationConfig(), description="measurement")
    figures: ClassVar[tuple[str, ...]] = ("loss", "perplexity", "bits_per_byte")
    """Metrics of the model; here the mean loss of the answers in nats per token, its exponential, and bits per byte."""

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
