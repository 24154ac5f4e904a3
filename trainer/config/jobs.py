"""The schemas of jobs on corpora, of evaluation, promotion and garbage; labelled.py and chat.py have the others."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from trainer.config.corpora import DataConfig
from trainer.config.engines import Engine, LocalEngine
from trainer.config.evaluation import (
    MASKED_FIGURES,
    TEXT_FIGURES,
    EvaluationConfig,
    PretrainingEvaluationConfig,
    check_metric,
)
from trainer.config.models import ModelConfig
from trainer.config.runs import RunJob
from trainer.config.schema import SHARD_SET, Device, JobName, Name, Place, Precision, Schema
from trainer.config.training import TrainingConfig
from trainer.store.names import Key


class PrepareJob(Schema):
    """Raw corpora to verified token shards."""

    store: Place
    name: JobName = "headrace"
    data: DataConfig = Field(description="corpora, tokenizer and shards")
    verify: bool = Field(
        default=False,
        description="whether all shards that are published already are read and compared with their checksums, before "
        "anything else is done; else each block is compared when it is first trained or measured on",
    )
    engine: Engine = LocalEngine()

    @property
    def corpora(self) -> list[str]:
        """The names of the corpora that it makes shards of."""
        return [corpus.name for corpus in self.data.corpora]

    @property
    def runs_begin_with(self) -> str | None:
        """How the names of its runs begin; None if it makes none."""
        return None


class PipelineJob(RunJob, PrepareJob):
    """Raw corpora to an evaluated model."""

    name: JobName = "headrace"
    data: DataConfig = Field(description="corpora, tokenizer and shards")
    model: ModelConfig = Field(description="the model to train")
    training: TrainingConfig = Field(description="optimisation")
    evaluation: PretrainingEvaluationConfig = Field(default=PretrainingEvaluationConfig(), description="measurement")

    @property
    def holds_out(self) -> bool:
        """Whether something may be held out to be measured on."""
        return self.data.validation_fraction > 0

    def preparation(self) -> PrepareJob:
        """The part of the job that makes the shards."""
        return PrepareJob(store=self.store, name=self.name, data=self.data, verify=self.verify, engine=self.engine)

    @model_validator(mode="after")
    def _masked_models_tell_tokens(self) -> Self:
        if self.training.objective == "masked" and self.evaluation.prompts:
            raise ValueError(
                "evaluation.prompts goes with training.objective: causal: a masked model continues no text"
            )
        if self.training.objective == "masked" and self.evaluation.harness is not None:
            raise ValueError("evaluation.harness goes with training.objective: causal: its tasks ask for continuations")
        if self.evaluation.harness is not None and self.evaluation.harness.chat_template:
            raise ValueError("evaluation.harness.chat_template goes with models that are tuned on conversations")
        if self.training.objective == "masked" and self.model.lora is not None:
            raise ValueError("model.lora goes with training.objective: causal, and with classifiers")
        return self

    @model_validator(mode="after")
    def _held_out_text(self) -> Self:
        figures = TEXT_FIGURES if self.training.objective == "causal" else MASKED_FIGURES
        if self.promotion is not None:
            check_metric("promotion.metric", self.promotion.metric, figures, self.evaluation.harness)
        on_the_way = [figure for figure in figures if figure != "perplexity"]  # which says what the loss says
        check_metric("evaluation.best_by", self.evaluation.best_by, on_the_way, self.evaluation.harness)
        if not self.holds_out and (asked := self.asked_of_held_out_text):
            raise ValueError(f"{asked} needs data.validation_fraction above 0: nothing is held out")
        return self

    @property
    def asked_of_held_out_text(self) -> str | None:
        """A setting that means nothing where no text is held out, if there is one."""
        asked = {
            "promotion": self.promotion,
            "evaluation.harness": self.evaluation.harness,
            "training.evaluate_every": self.training.evaluate_every,
            "training.early_stopping": self.training.early_stopping,
            "training.final: best": self.training.final == "best" or None,
        }
        return next((name for name, value in asked.items() if value is not None), None)


class EvaluateJob(Schema):
    """A checkpoint, measured on held-out text; one of a fine-tuned run, on the labelled splits of that run or on new
    files.
    """

    store: Place
    checkpoint: str = Field(
        description="what to evaluate: a run's name (its final model), models/NAME for a champion, a folder in the "
        "store such as runs/NAME/checkpoints/step-00000100, or any pretrained folder"
    )
    shards: list[Annotated[Key, Field(pattern=SHARD_SET)]] | None = Field(
        default=None,
        description="shard sets in the store, such as shards/code-0123456789abcdef; default: its training's; not for a "
        "classifier",
    )
    context: int | None = Field(
        default=None, ge=2, description="window length in tokens; default: that of its training; not for a classifier"
    )
    labelled: list[str] | None = Field(
        default=None,
        min_length=1,
        description="for a classifier: files of labelled examples to measure it on, with the columns that it was "
        "trained on; paths or globs, local or any fsspec URL; default: the labelled splits of its run",
    )
    precision: Precision = "fp32"
    device: Device = "auto"
    processes: int = Field(
        default=1,
        ge=1,
        description="ranks the pipeline starts on this machine, such as one a GPU; with any number the same figures",
    )
    sharding: Literal["none", "fsdp"] = Field(
        default="none",
        description="none: every rank holds the model; fsdp: it is divided among the ranks, with the same figures",
    )
    cpu_offload: bool = Field(default=False, description="sharding fsdp: weights lie in the host's memory")
    evaluation: EvaluationConfig = Field(default=EvaluationConfig(), description="measurement")
    engine: Engine = LocalEngine()

    @model_validator(mode="after")
    def _shardable(self) -> Self:
        if self.cpu_offload and self.sharding == "none":
            raise ValueError("cpu_offload goes with sharding: fsdp")
        return self


class PromoteJob(Schema):
    """A run's model to become the champion under a name."""

    store: Place
    name: Name = Field(description="the name under which models are used")
    run: Name = Field(description="the run whose final model it is to be")
    reason: str = Field(default="by hand", description="why, for the history")
    another_use: bool = Field(
        default=False,
        description="take the place of a champion that is for another use: of another kind or task, or with other "
        "classes",
    )


class RollbackJob(Schema):
    """The champion before the present one to be champion again."""

    store: Place
    name: Name = Field(description="the name under which models are used")
    reason: str = Field(default="by hand", description="why, for the history")


class GarbageJob(Schema):
    """What no run, champion or pin reaches, to be found and removed."""

    store: Place
    older_than_days: float = Field(
        default=7.0, ge=0, le=36500, description="what was written to since then stays: days"
    )
    runs_older_than_days: float | None = Field(
        default=None,
        ge=0,
        le=36500,
        description="runs that were not written to for so many days go too, but for champions, pins and what others "
        "were made from; default: no run goes",
    )
    remove: bool = Field(default=False, description="remove what is found; else it is only shown")
