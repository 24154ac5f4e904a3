"""What a run trains on, and step plans as its plan.json holds them."""

from collections.abc import Mapping
from typing import Any, Self

from pydantic import Field, model_validator

from trainer.common.formats import count, plural, short
from trainer.records.basis import Record
from trainer.store.manifest import ArtifactRef


class PreparedData(Record):
    """A tokenizer and shards: references to everything that pretraining reads."""

    tokenizer: ArtifactRef
    shards: list[ArtifactRef]


class CorpusPlan(Record, strict=True):
    """A corpus's part in the run."""

    name: str
    documents: int
    tokens: int
    unused_tokens: int
    validation_tokens: int
    windows: int
    probability: float
    passes: float

    @property
    def holds_out(self) -> bool:
        """Whether there is held-out text to evaluate on: a token that follows another."""
        return self.validation_tokens > 1


class Plan(Record, strict=True):
    """What every training loop needs to know of its length."""

    global_batch: int = Field(ge=1)
    ranks: int = Field(ge=1)
    micro_batch: int = Field(ge=1)
    accumulation: int = Field(ge=1)
    steps_per_epoch: int = Field(ge=1)
    total_steps: int = Field(ge=1)
    warmup_steps: int = Field(ge=0)

    @property
    def holds_out(self) -> bool:
        """Whether there is something to be measured on; of data in splits there always is."""
        return True

    def figures(self) -> dict[str, int]:
        """The figures that people look at, by their names."""
        last = ("global_batch", "ranks", "micro_batch", "accumulation")
        names = ("total_steps", "warmup_steps", "steps_per_epoch", *last)
        return {name.replace("_", " "): getattr(self, name) for name in names}

    def fixed(self) -> dict[str, Any]:
        """All that is the same on any number of ranks, which may change whenever a run is continued."""
        return self.model_dump(exclude={"ranks", "micro_batch", "accumulation"})


class StepPlan(Plan):
    """Pretraining: everything that follows from the data's size and the training settings."""

    corpora: list[CorpusPlan]
    windows: int
    tokens_per_step: int
    """Of packed documents, the mean."""
    fill: float | None = Field(default=None, exclude_if=lambda value: value is None)
    """The share of the windows' room that packed documents take; None for windows over the stream, which are full."""

    @property
    def holds_out(self) -> bool:
        """Whether there is held-out text to evaluate on."""
        return any(corpus.holds_out for corpus in self.corpora)

    @property
    def total_tokens(self) -> int:
        return self.total_steps * self.tokens_per_step

    def figures(self) -> dict[str, int]:
        """The same, and the tokens, which all samples have in the same number."""
        return {**super().figures(), "tokens per step": self.tokens_per_step, "total tokens": self.total_tokens}

    def describe_steps(self) -> str:
        """The plan in one line."""
        windows = f"{self.windows:,} windows" + ("" if self.fill is None else f", {self.fill:.1%} full")
        return (
            f"{windows}, {self.steps_per_epoch:,} steps an epoch; {self.total_steps:,} steps of {self.global_batch} "
            f"windows ({plural(self.ranks, 'rank')} x {self.accumulation} x {self.micro_batch}), "
            f"{self.total_tokens:,} tokens"
        )

    def rows(self) -> list[dict[str, object]]:
        """A row for each corpus."""
        return [
            {
                "corpus": corpus.name,
                "documents": corpus.documents,
                "tokens": corpus.tokens,
                "held-out tokens": corpus.validation_tokens,
                "windows": corpus.windows,
                "share of samples": f"{corpus.probability:.1%}",
                "passes": f"{corpus.passes:.2f}",
            }
            for corpus in self.corpora
        ]

    def describe_data(self, name: str) -> str:
        """The corpora by their own names, in a few words."""
        names = [corpus.name for corpus in self.corpora]
        what = ", ".join(names) if len(names) <= 2 else plural(len(names), "corpus", "corpora")
        return f"{what}: {short(sum(corpus.tokens for corpus in self.corpora))} tokens"


class TuningPlan(Plan):
    """Tuning on data in splits; the test split is no part of the run."""

    unit: str = "example"
    """What an example is called."""
    examples: int
    validation_examples: int
    windows: int | None = Field(default=None, exclude_if=lambda value: value is None)
    """The windows that examples are packed into; None where an example is a sample."""
    fill: float | None = Field(default=None, exclude_if=lambda value: value is None)
    """The share of the windows that is no padding."""
    answer_tokens: int | None = Field(default=None, exclude_if=lambda value: value is None)
    """The tokens that are predicted, where not all are."""

    @model_validator(mode="after")
    def _windows_are_told_whole(self) -> Self:
        told = {"windows": self.windows, "fill": self.fill, "answer_tokens": self.answer_tokens}
        missing = [name for name, value in told.items() if value is None]
        if missing and (len(missing) < len(told) or self.unit == "conversation"):
            raise ValueError(f"{missing[0]}: missing, though examples stand in windows")
        return self

    @property
    def sample(self) -> str:
        """What a batch consists of."""
        return self.unit if self.windows is None else "window"

    def describe_data(self, name: str) -> str:
        """The data set of this name, in a few words."""
        return f"{name}: {count(self.examples)} {self.unit}s"

    def describe_steps(self) -> str:
        """The plan in one line."""
        windows = "" if self.windows is None else f" in {self.windows:,} windows, {self.fill or 0:.1%} full"
        return (
            f"{self.examples:,} {self.unit}s{windows}, {self.steps_per_epoch:,} steps an epoch; {self.total_steps:,} "
            f"steps of {self.global_batch} {self.sample}s "
            f"({plural(self.ranks, 'rank')} x {self.accumulation} x {self.micro_batch})"
        )


RunPlan = StepPlan | TuningPlan
"""The plan of a run: on corpora, or on data in splits."""


def plan_type(values: Mapping[str, Any]) -> type[RunPlan]:
    """The plan that a plan.json is, or is meant to be: that which has most of its fields, also where one of them is
    missing, so that this is what is told.
    """
    plans: tuple[type[RunPlan], ...] = (StepPlan, TuningPlan)
    return max(plans, key=lambda plan: len(plan.model_fields.keys() & values.keys()))


def read_plan(values: Mapping[str, Any]) -> RunPlan:
    """The plan that a plan.json holds."""
    return plan_type(values)(**values)
