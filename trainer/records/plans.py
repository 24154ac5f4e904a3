"""The data that a run trains on, and the step plans in plan.json."""

from collections.abc import Mapping
from typing import Any, Self

from pydantic import Field, model_validator

from trainer.common.display import percent, plural, short, significant
from trainer.records.basis import Record
from trainer.store.manifest import ArtifactRef


class PreparedData(Record):
    """References to everything that pretraining reads: tokenizer and shards."""

    tokenizer: ArtifactRef
    shards: list[ArtifactRef]


class CorpusPlan(Record, strict=True):
    """A corpus's share of the run."""

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
        """Whether there is held-out text to evaluate on: at least one predicted token."""
        return self.validation_tokens > 1


class Plan(Record, strict=True):
    """Length and batches of a training, as needed by every training loop."""

    global_batch: int = Field(ge=1)
    ranks: int = Field(ge=1)
    micro_batch: int = Field(ge=1)
    accumulation: int = Field(ge=1)
    steps_per_epoch: int = Field(ge=1)
    total_steps: int = Field(ge=1)
    warmup_steps: int = Field(ge=0)

    @property
    def holds_out(self) -> bool:
        """Whether there is data to evaluate on; with data in splits, always."""
        return True

    def figures(self) -> dict[str, int]:
        """The plan's numbers for display, by name."""
        last = ("global_batch", "ranks", "micro_batch", "accumulation")
        names = ("total_steps", "warmup_steps", "steps_per_epoch", *last)
        return {name.replace("_", " "): getattr(self, name) for name in names}

    def fixed(self) -> dict[str, Any]:
        """The fields that do not depend on the number of ranks, which may change when a run is continued."""
        return self.model_dump(exclude={"ranks", "micro_batch", "accumulation"})


class StepPlan(Plan):
    """The plan of a pretraining, derived from the size of the data and the training settings."""

    corpora: list[CorpusPlan]
    windows: int
    tokens_per_step: int
    """The mean for packed documents."""
    fill: float | None = Field(default=None, exclude_if=lambda value: value is None)
    """Share of the windows filled by packed documents; None for windows over the stream, which are full."""

    @property
    def holds_out(self) -> bool:
        """Whether there is held-out text to evaluate on."""
        return any(corpus.holds_out for corpus in self.corpora)

    @property
    def total_tokens(self) -> int:
        return self.total_steps * self.tokens_per_step

    def figures(self) -> dict[str, int]:
        """The plan's numbers for display, including tokens, as all samples have the same length."""
        return {**super().figures(), "tokens per step": self.tokens_per_step, "total tokens": self.total_tokens}

    def describe_steps(self) -> str:
        """The plan in one line."""
        windows = plural(self.windows, "window") + ("" if self.fill is None else f", {self.fill:.1%} full")
        return (
            f"{windows}, {plural(self.steps_per_epoch, 'step')} per epoch; {plural(self.total_steps, 'step')} of "
            f"{plural(self.global_batch, 'window')} ({plural(self.ranks, 'rank')} x {self.accumulation} x "
            f"{self.micro_batch}), {plural(self.total_tokens, 'token')}"
        )

    def rows(self) -> list[dict[str, object]]:
        """One row per corpus."""
        return [
            {
                "corpus": corpus.name,
                "documents": corpus.documents,
                "tokens": corpus.tokens,
                "held-out tokens": corpus.validation_tokens,
                "windows": corpus.windows,
                "share of samples": percent(corpus.probability),
                "passes": significant(corpus.passes),
            }
            for corpus in self.corpora
        ]

    def describe_data(self, name: str) -> str:
        """The corpora in a few words."""
        names = [corpus.name for corpus in self.corpora]
        what = ", ".join(names) if len(names) <= 2 else plural(len(names), "corpus", "corpora")
        return f"{what}: {short(sum(corpus.tokens for corpus in self.corpora))} tokens"


class TuningPlan(Plan):
    """The plan of a tuning on data in splits; the test split is not part of the run."""

    unit: str = "example"
    """Name of an example."""
    examples: int
    validation_examples: int
    windows: int | None = Field(default=None, exclude_if=lambda value: value is None)
    """Windows that examples are packed into; None if each example is a sample."""
    fill: float | None = Field(default=None, exclude_if=lambda value: value is None)
    """Share of the windows without padding."""
    answer_tokens: int | None = Field(default=None, exclude_if=lambda value: value is None)
    """Number of predicted tokens, if not all are."""

    @model_validator(mode="after")
    def _windows_are_told_whole(self) -> Self:
        fields = {"windows": self.windows, "fill": self.fill, "answer_tokens": self.answer_tokens}
        missing = [name for name, value in fields.items() if value is None]
        if missing and (len(missing) < len(fields) or self.unit == "conversation"):
            raise ValueError(f"{missing[0]}: missing, but examples are packed into windows")
        return self

    @property
    def sample(self) -> str:
        """Name of the items in a batch."""
        return self.unit if self.windows is None else "window"

    def describe_data(self, name: str) -> str:
        """The data set in a few words."""
        return f"{name}: {plural(self.examples, self.unit)}"

    def describe_steps(self) -> str:
        """The plan in one line."""
        windows = "" if self.windows is None else f" in {plural(self.windows, 'window')}, {self.fill or 0:.1%} full"
        return (
            f"{plural(self.examples, self.unit)}{windows}, {plural(self.steps_per_epoch, 'step')} per epoch; "
            f"{plural(self.total_steps, 'step')} of {plural(self.global_batch, self.sample)} "
            f"({plural(self.ranks, 'rank')} x {self.accumulation} x {self.micro_batch})"
        )


RunPlan = StepPlan | TuningPlan
"""The plan of a run: on corpora, or on data in splits."""


def plan_type(values: Mapping[str, Any]) -> type[RunPlan]:
    """The type of a plan.json: the one that shares the most fields with it, so that errors are about missing fields."""
    plans: tuple[type[RunPlan], ...] = (StepPlan, TuningPlan)
    return max(plans, key=lambda plan: len(plan.model_fields.keys() & values.keys()))


def read_plan(values: Mapping[str, Any]) -> RunPlan:
    """The plan in a plan.json."""
    return plan_type(values)(**values)
