"""Step plans as a run's plan.json holds them."""

from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from trainer.common.formats import count, plural, short


class CorpusPlan(BaseModel):
    """A corpus's part in the run."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    name: str
    documents: int
    tokens: int
    unused_tokens: int
    validation_tokens: int
    windows: int
    probability: float
    passes: float


class Plan(BaseModel):
    """What every training loop needs to know of its length."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

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
        names = (
            "total_steps",
            "warmup_steps",
            "steps_per_epoch",
            "global_batch",
            "ranks",
            "micro_batch",
            "accumulation",
        )
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
        return any(corpus.validation_tokens > 1 for corpus in self.corpora)

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


class ChatPlan(Plan):
    """Instruction tuning: conversations, and the windows that they are packed into; `fill` is the share that is no
    padding.

    The test split is no part of the run.
    """

    sample: ClassVar[str] = "window"
    conversations: int
    windows: int
    fill: float
    answer_tokens: int
    validation_conversations: int

    def describe_data(self, name: str) -> str:
        """The conversations of this name, in a few words."""
        return f"{name}: {count(self.conversations)} conversations"

    def describe_steps(self) -> str:
        """The plan in one line."""
        return (
            f"{self.conversations:,} conversations in {self.windows:,} windows, {self.fill:.1%} full; "
            f"{self.steps_per_epoch:,} steps an epoch; {self.total_steps:,} steps of {self.global_batch} windows "
            f"({plural(self.ranks, 'rank')} x {self.accumulation} x {self.micro_batch})"
        )


class FinetunePlan(Plan):
    """Fine-tuning: the same for a labelled set, but for its test split, which is no part of the run."""

    sample: ClassVar[str] = "example"
    examples: int
    validation_examples: int

    def describe_data(self, name: str) -> str:
        """The labelled set of this name, in a few words."""
        return f"{name}: {count(self.examples)} examples"

    def describe_steps(self) -> str:
        """The plan in one line."""
        return (
            f"{self.examples:,} examples, {self.steps_per_epoch:,} steps an epoch; {self.total_steps:,} steps of "
            f"{self.global_batch} examples ({plural(self.ranks, 'rank')} x {self.accumulation} x {self.micro_batch})"
        )


RunPlan = StepPlan | FinetunePlan | ChatPlan
"""The plan of a run of any kind."""
