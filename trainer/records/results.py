"""Results of preflights, predictions, gates and whole jobs, as stages return them; without heavy imports."""

from typing import ClassVar

from pydantic import Field

from trainer.common.display import Table, plural, size, some, text_pairs, text_table
from trainer.records.basis import AnyBasis, Record
from trainer.records.evaluations import Result
from trainer.records.fields import printable
from trainer.records.plans import StepPlan, TuningPlan


class CorpusPreview(Record):
    """A corpus's raw files with their approximate uncompressed size, and its counts if it is tokenized already."""

    name: str
    files: int
    raw_bytes: int
    documents: int | None
    tokens: int | None


class RuleShare(Record):
    """Number and bytes of a corpus's sampled documents that are dropped for one reason."""

    corpus: str
    reason: str
    dropped: int
    of: int
    dropped_bytes: int
    of_bytes: int


class CurationPreview(Record):
    """Estimates of curation from sampled documents, warnings, and reasons that a sample cannot estimate."""

    shares: list[RuleShare] = Field(default=[])
    unestimated: list[str] = Field(default=[])
    warnings: list[str] = Field(default=[])


class Preflight(Record):
    """The plan of a pretraining job. `plan` is exact, and None until the text is tokenized; `about_*` are estimates.

    Memory is per rank: of the device and of the host, which are the same without a GPU. `unestimated` are the reasons
    of curation that a sample cannot estimate.
    """

    corpora: list[CorpusPreview]
    vocab_size: int
    parameters: int
    trained: int
    checkpoint_bytes: int
    ranks: int
    plan: StepPlan | None
    about_windows: int
    about_steps: int
    about_memory_bytes: int
    about_host_bytes: int
    about_disk_bytes: int
    free_disk_bytes: int | None
    curation: list[RuleShare] = Field(default=[])
    unestimated: list[str] = Field(default=[])
    warnings: list[str] = Field(default=[])

    def data_rows(self) -> list[tuple[str, str]]:
        """Empty: the line of `describe` states what is known of the corpora."""
        return []

    def describe(self) -> str:
        """The plan in one line."""
        raw_bytes = sum(corpus.raw_bytes for corpus in self.corpora)
        return (
            f"{plural(len(self.corpora), 'corpus', 'corpora')}, {size(raw_bytes)} raw, a model of "
            f"{self.parameters / 1e6:.1f}M parameters, {plural(self.ranks, 'rank')}"
        )

    def lines(self) -> list[str]:
        """The plan of a job that is not started, for a terminal."""
        counted = []
        for corpus in self.corpora:
            documents, tokens = (("?" if n is None else f"{n:,}") for n in (corpus.documents, corpus.tokens))
            counted.append([corpus.name, f"{corpus.files:,}", size(corpus.raw_bytes), documents, tokens])
        about = "" if self.plan else "about "
        rows = [
            ("vocabulary", f"{self.vocab_size:,} tokens"),
            ("model", describe_parameters(self.parameters, self.trained)),
            ("windows", f"{about}{self.about_windows:,}"),
            ("steps", f"{about}{self.about_steps:,} on {plural(self.ranks, 'rank')}"),
            *memory_rows(self.about_memory_bytes, self.about_host_bytes),
            ("disk", f"about {size(self.about_disk_bytes)}"),
        ]
        if self.free_disk_bytes is not None:
            rows.append(("free disk", size(self.free_disk_bytes)))
        for share in self.curation:
            if share.dropped:
                documents = f"{share.dropped:,} of {share.of:,} sampled documents"
                dropped = f"{documents} ({size(share.dropped_bytes)} of {size(share.of_bytes)}) dropped: {share.reason}"
                rows.append(("curation", f"{share.corpus}: {dropped}"))
        rows += [("warning", warning) for warning in self.warnings]
        if self.unestimated:
            rows.append(("curation", f"not estimated, as a sample does not show it: {', '.join(self.unestimated)}"))
        table = text_table(Table(["corpus", "files", "raw", "documents", "tokens"], counted))
        lines = [*table.splitlines(), *text_pairs(rows)]
        if not self.plan:
            lines.append("Windows and steps are estimates until the text is tokenized.")
        return lines


def describe_parameters(parameters: int, trained: int) -> str:
    """The number of parameters, and of trained ones if not all are."""
    part = "" if trained == parameters else f", {trained:,} of them trained ({trained / parameters:.2%})"
    return f"{parameters:,} parameters{part}"


def memory_rows(device: int, host: int) -> list[tuple[str, str]]:
    """The memory per rank, for a terminal."""
    rows = [("memory", f"about {size(device)} per rank")]
    return rows if host == device else [*rows, ("host memory", f"about {size(host)}, including checkpoint copies")]


class PredictedTexts(Record):
    """Predictions for new texts: counts per class, or the mean, smallest and largest number.

    `skipped` are the first bad records, each with location and error. If words are labelled, counts are of words: all
    `words` except those that the model did not see.
    """

    key: str
    fingerprint: str
    size: int
    model: str
    texts: int
    bad_records: int
    skipped: list[str] = Field(default=[])
    truncated: int
    predicted: dict[str, float]
    words: int = 0
    unseen_words: int = 0
    reused: bool = False


class Lengths(Record):
    """Token lengths of the checked examples of a split, and how many are cut to `most` tokens."""

    examples: int
    mean: float
    longest: int
    most: int
    cut: int

    def describe(self) -> str:
        """The lengths in one line."""
        cut = f"{self.cut:,} of {self.examples:,} ({self.cut / self.examples:.1%})" if self.cut else "none"
        return f"{self.mean:.1f} tokens on average, {self.longest:,} at most; {cut} cut to {self.most:,}"


MOST_CLASSES = 12
"""Maximum number of classes listed in a terminal."""


def describe_balance(balance: dict[str, int], examples: int | None = None) -> str:
    """The number of examples, or words, of each class and their share of all, in one line; of all `examples` if several
    classes may apply to each.
    """
    total = examples or max(1, sum(balance.values()))
    return some((f"{printable(name)} {count:,} ({count / total:.1%})" for name, count in balance.items()), MOST_CLASSES)


class TuningPreflight(Record):
    """The plan of a job that tunes a model. `splits` and `plan` are None if the data is too large to be read whole.

    `lengths` are by split; `balance` counts the checked examples of each class in train; `several_labels`: more than
    one may apply to an example. Memory is as in `Preflight`.
    """

    model: str
    parameters: int
    trained: int
    checkpoint_bytes: int
    ranks: int
    metrics: list[str]
    looked_at: str
    splits: dict[str, int] | None
    lengths: dict[str, Lengths] = Field(default={})
    balance: dict[str, int] | None = None
    several_labels: bool = Field(default=False, exclude_if=lambda value: not value)
    plan: TuningPlan | None
    about_memory_bytes: int
    about_host_bytes: int
    warnings: ClassVar[tuple[str, ...]] = ()

    def describe(self) -> str:
        """The plan in one line."""
        measured = ", ".join(self.metrics)
        return (
            f"{self.model}, {self.parameters / 1e6:.1f}M parameters, measured by {measured}, "
            f"{plural(self.ranks, 'rank')}"
        )

    def lines(self) -> list[str]:
        """The plan of a job that is not started, for a terminal."""
        model = f"{self.model}, {describe_parameters(self.parameters, self.trained)}"
        rows = [("model", model), ("metrics", ", ".join(self.metrics))]
        rows.append(("checked", self.looked_at))
        rows += self.data_rows()
        if self.plan is not None:
            batch = plural(self.plan.global_batch, self.plan.sample)
            rows.append(("steps", f"{self.plan.total_steps:,} of {batch} each, on {plural(self.ranks, 'rank')}"))
        rows += memory_rows(self.about_memory_bytes, self.about_host_bytes)
        lines = text_pairs(rows)
        if self.plan is None:
            lines.append("Examples are counted, and steps planned, once the data is encoded.")
        return lines

    def data_rows(self) -> list[tuple[str, str]]:
        """Number and lengths of each split's examples, and the classes in train."""
        rows = []
        for name in dict.fromkeys([*(self.splits or {}), *self.lengths]):
            counted = [plural(self.splits[name], "example")] if self.splits else []
            lengths = [self.lengths[name].describe()] if name in self.lengths else []
            rows.append((name, "; ".join([*counted, *lengths])))
        if not self.balance:
            return rows
        examples = self.splits["train"] if self.several_labels and self.splits else None
        return [*rows, ("classes", describe_balance(self.balance, examples))]


class Finished(Record):
    """A complete run of a job, and its planned number of ranks; nothing else is checked."""

    run: str
    ranks: int

    def describe(self) -> str:
        """The result in one line."""
        return f"{self.run} is finished and evaluated: nothing to compute"


AnyPreflight = Preflight | TuningPreflight
"""The plan of a job of any kind."""


class Verdict(Record):
    """A gate's decision: whether the model passes, and why."""

    passed: bool
    reason: str


class Remeasured(Record):
    """A champion's metrics, measured again on a run's evaluation data, or the reason why that failed."""

    run: str
    fingerprint: str
    scores: dict[str, float] = Field(default_factory=dict)
    measured_on: AnyBasis | None = None
    problem: str = ""


class Outcome(Record):
    """Result of a whole pipeline: run, evaluation (None if nothing was held out), report, and the gate's decision."""

    run: str
    evaluation: Result | None
    report: str
    promotion: Verdict | None = None
