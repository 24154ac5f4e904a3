"""Schemas of jobs on corpora, and of evaluation, promotion and garbage collection; labelled.py and chat.py have the
others.
"""

from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

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
        description="first read all published shards and compare them with their checksums; by default, each block "
        "is verified when training or evaluation first reads it",
    )
    engine: Engine = LocalEngine()

    @property
    def corpora(self) -> list[str]:
        """Names of the corpora that the job tokenizes into shards."""
        return [corpus.name for corpus in self.data.corpora]

    @property
    def runs_begin_with(self) -> str | None:
        """Prefix of the names of its runs; None if it has no runs."""
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
        """Whether the job may hold out documents for evaluation."""
        return self.data.validation_fraction > 0

    def preparation(self) -> PrepareJob:
        """The part of the job that builds the shards."""
        return PrepareJob(store=self.store, name=self.name, data=self.data, verify=self.verify, engine=self.engine)

    @model_validator(mode="after")
    def _masked_models_tell_tokens(self) -> Self:
        if self.training.objective == "masked" and self.evaluation.prompts:
            raise ValueError(
                "evaluation.prompts requires training.objective: causal: a masked model cannot continue text"
            )
        if self.training.objective == "masked" and self.evaluation.harness is not None:
            raise ValueError("evaluation.harness requires training.objective: causal: its tasks score continuations")
        if self.evaluation.harness is not None and self.evaluation.harness.chat_template:
            raise ValueError("evaluation.harness.chat_template requires a model tuned on conversations")
        if self.training.objective == "masked" and self.model.lora is not None:
            raise ValueError("model.lora requires training.objective: causal, or a classifier")
        return self

    @model_validator(mode="after")
    def _held_out_text(self) -> Self:
        figures = TEXT_FIGURES if self.training.objective == "causal" else MASKED_FIGURES
        if self.promotion is not None:
            check_metric("promotion.metric", self.promotion.metric, figures, self.evaluation.harness)
        on_the_way = [
            figure for figure in figures if figure != "perplexity"
        ]  # perplexity ranks checkpoints as the loss does
        check_metric("evaluation.best_by", self.evaluation.best_by, on_the_way, self.evaluation.harness)
        if not self.holds_out and (asked := self.asked_of_held_out_text):
            raise ValueError(f"{asked} needs data.validation_fraction above 0: no text is held out")
        return self

    @property
    def asked_of_held_out_text(self) -> str | None:
        """The first setting that needs held-out text, or None."""
        settings = {
            "promotion": self.promotion,
            "evaluation.harness": self.evaluation.harness,
            "training.evaluate_every": self.training.evaluate_every,
            "training.early_stopping": self.training.early_stopping,
            "training.final: best": self.training.final == "best" or None,
        }
        return next((name for name, value in settings.items() if value is not None), None)


class EvaluateJob(Schema):
    """Evaluation of a checkpoint: a language model on held-out text, a classifier on labelled splits or new files."""

    store: Place
    checkpoint: str = Field(
        description="what to evaluate: a run's name (its final model), models/NAME for a champion, a folder in the "
        "store such as runs/NAME/checkpoints/step-00000100, or any pretrained folder"
    )
    shards: list[Annotated[Key, Field(pattern=SHARD_SET)]] | None = Field(
        default=None,
        min_length=1,
        description="for a language model: shard sets in the store, such as shards/code-0123456789abcdef; default: "
        "those of its training",
    )
    context: int | None = Field(
        default=None, ge=2, description="for a language model: window length in tokens; default: that of its training"
    )
    labelled: list[str] | None = Field(
        default=None,
        min_length=1,
        description="for a classifier: files of labelled examples with the columns that it was trained on; paths or "
        "globs, local or any fsspec URL; default: the labelled splits of its run",
    )
    precision: Precision = "fp32"
    device: Device = "auto"
    processes: int = Field(
        default=1,
        ge=1,
        description="ranks to start on this machine, such as one per GPU; the results do not depend on it",
    )
    sharding: Literal["none", "fsdp"] = Field(
        default="none",
        description="none: every rank holds the whole model; fsdp: the model is sharded across ranks; the results "
        "are the same",
    )
    cpu_offload: bool = Field(default=False, description="sharding fsdp: keep the weights in host memory")
    evaluation: EvaluationConfig = Field(default=EvaluationConfig(), description="measurement")
    engine: Engine = LocalEngine()

    @model_validator(mode="after")
    def _shardable(self) -> Self:
        if self.cpu_offload and self.sharding == "none":
            raise ValueError("cpu_offload requires sharding: fsdp")
        return self


RunName = Annotated[Name, BeforeValidator(lambda name: name.removeprefix("runs/") if isinstance(name, str) else name)]
"""A run's full name; also its key in the store, which commands print."""


class PromoteJob(Schema):
    """Promotion of a run's model to the champion under a name."""

    store: Place
    name: Name = Field(description="the name of the champion")
    run: RunName = Field(description="the run whose final model becomes the champion")
    reason: str = Field(default="by hand", description="reason, recorded in the history")
    another_use: bool = Field(
        default=False,
        description="replace the champion even if it has another use: another kind or task, or other classes",
    )


class RollbackJob(Schema):
    """Return to the previous champion."""

    store: Place
    name: Name = Field(description="the name of the champion")
    run: RunName | None = Field(
        default=None,
        description="full name of the champion to roll back; if that was done last, nothing changes; default: the "
        "present one",
    )
    reason: str = Field(default="by hand", description="reason, recorded in the history")

    @property
    def key(self) -> str | None:
        """The key of the run to roll back, if one is named."""
        return self.run and f"runs/{self.run}"


class GarbageJob(Schema):
    """Garbage collection: artifacts that no run, champion or pin refers to are found and removed."""

    store: Place
    older_than_days: float = Field(
        default=7.0, ge=0, le=36500, description="days; artifacts written to since then are kept"
    )
    runs_older_than_days: float | None = Field(
        default=None,
        ge=0,
        le=36500,
        description="days; runs not written to for this long are removed too, except champions, pinned runs and runs "
        "that a run that stays depends on; default: keep all runs",
    )
    remove: bool = Field(default=False, description="remove the artifacts; default: only list them")
