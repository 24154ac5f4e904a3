"""What preflights, predictions, gates and whole jobs tell, as stages hand it on; free of heavy imports, so that the
pipeline can read it.
"""

from pydantic import Field

from trainer.common.formats import Table, plural, size, text_pairs, text_table
from trainer.records.basis import AnyBasis, Record
from trainer.records.evaluations import Result
from trainer.records.plans import StepPlan, TuningPlan


class CorpusPreview(Record):
    """A corpus's raw files, with about the bytes that they hold unpacked, and its counts if it is tokenized already."""

    name: str
    files: int
    raw_bytes: int
    documents: int | None
    tokens: int | None


class RuleShare(Record):
    """How many of some sampled documents of a corpus go for one reason, and how much of their text."""

    corpus: str
    reason: str
    dropped: int
    of: int
    dropped_bytes: int
    of_bytes: int


class CurationPreview(Record):
    """What a sample of documents tells of curation, what may be wrong, and the reasons of which it tells nothing."""

    shares: list[RuleShare] = Field(default=[])
    unestimated: list[str] = Field(default=[])
    warnings: list[str] = Field(default=[])


class Preflight(Record):
    """What a job will do. `plan` is exact, and None until the text is tokenized; `about_*` are estimates.

    The memory is a rank's: of its device, and of the host, which is the same without a GPU. `unestimated` are the
    reasons of curation of which a sample tells nothing; `warnings` are of what it shows.
    """

    corpora: list[CorpusPreview]
    vocab_size: int
    parameters: int
    trained: int
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

    def describe(self) -> str:
        """In one line."""
        raw_bytes = sum(corpus.raw_bytes for corpus in self.corpora)
        return (
            f"{plural(len(self.corpora), 'corpus', 'corpora')}, {raw_bytes / 1e6:.1f} MB raw, a model of "
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
            ("model", tell_parameters(self.parameters, self.trained)),
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
                told = f"{documents} ({size(share.dropped_bytes)} of {size(share.of_bytes)}) go: {share.reason}"
                rows.append(("curation", f"{share.corpus}: {told}"))
        rows += [("warning", told) for told in self.warnings]
        if self.unestimated:
            told = (
                f"how many documents go as {' or '.join(self.unestimated)} is not estimated: a sample does not show it"
            )
            rows.append(("curation", told))
        table = text_table(Table(["corpus", "files", "raw", "documents", "tokens"], counted))
        lines = [*table.splitlines(), *text_pairs(rows)]
        if not self.plan:
            lines.append(
                "Token counts are known once the text is tokenized; until then windows and steps are estimates."
            )
        return lines


def tell_parameters(parameters: int, trained: int) -> str:
    """How large a model is, and how much of it is trained if that is not all."""
    part = "" if trained == parameters else f", {trained:,} of them trained ({trained / parameters:.2%})"
    return f"{parameters:,} parameters{part}"


def memory_rows(device: int, host: int) -> list[tuple[str, str]]:
    """What a rank takes of memory, for a terminal."""
    rows = [("memory", f"about {size(device)} a rank")]
    return rows if host == device else [*rows, ("host memory", f"about {size(host)}, with the copies of a checkpoint")]


class PredictedTexts(Record):
    """Predictions of new texts: how many, and how many fell to each class, or the mean, least and greatest number.

    `skipped` are the first of the bad records, each with its place and what is wrong with it.
    Where words are labelled, it is they that fell to classes: all `words` but those that the model did not see.
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
    """How long the examples of a split are in tokens, of so many that were looked at, and how many are cut to the
    `most`.
    """

    examples: int
    mean: float
    longest: int
    most: int
    cut: int

    def describe(self) -> str:
        """In one line."""
        cut = f"{self.cut:,} of {self.examples:,} ({self.cut / self.examples:.1%})" if self.cut else "none"
        return f"{self.mean:.1f} tokens on average, {self.longest:,} at most; {cut} cut to {self.most:,}"


MOST_CLASSES = 12
"""Classes whose examples are counted for a terminal."""


def describe_balance(balance: dict[str, int]) -> str:
    """How many examples, or words, there are of each class, in one line."""
    total = max(1, sum(balance.values()))
    told = [f"{name} {count:,} ({count / total:.1%})" for name, count in list(balance.items())[:MOST_CLASSES]]
    more = [f"and {len(balance) - MOST_CLASSES} more classes"] if len(balance) > MOST_CLASSES else []
    return ", ".join([*told, *more])


class TuningPreflight(Record):
    """What a job that tunes a model will do. `splits` and `plan` are None where the data is too large to be looked at
    whole.

    `lengths` are by split, and `balance` the examples of each class in train, of those that were looked at. The memory
    is told as by `Preflight`.
    """

    model: str
    parameters: int
    trained: int
    ranks: int
    metrics: list[str]
    looked_at: str
    splits: dict[str, int] | None
    lengths: dict[str, Lengths] = Field(default={})
    balance: dict[str, int] | None = None
    plan: TuningPlan | None
    about_memory_bytes: int
    about_host_bytes: int

    def describe(self) -> str:
        """In one line."""
        measured = ", ".join(self.metrics)
        return (
            f"{self.model}, {self.parameters / 1e6:.1f}M parameters, measured by {measured}, "
            f"{plural(self.ranks, 'rank')}"
        )

    def lines(self) -> list[str]:
        """The plan of a job that is not started, for a terminal."""
        model = f"{self.model}, {tell_parameters(self.parameters, self.trained)}"
        rows = [("model", model), ("metrics", ", ".join(self.metrics))]
        rows.append(("looked at", self.looked_at))
        rows += self.data_rows()
        if self.plan is not None:
            batch = plural(self.plan.global_batch, self.plan.sample)
            rows.append(("steps", f"{self.plan.total_steps:,}, of {batch} on {plural(self.ranks, 'rank')}"))
        rows += memory_rows(self.about_memory_bytes, self.about_host_bytes)
        lines = text_pairs(rows)
        if self.plan is None:
            lines.append("Examples are counted, and steps planned, once the data is encoded.")
        return lines

    def data_rows(self) -> list[tuple[str, str]]:
        """What is known of the data: how many examples each split has, how long they are, and their classes in
        train.
        """
        rows = []
        for name in dict.fromkeys([*(self.splits or {}), *self.lengths]):
            counted = [f"{self.splits[name]:,} examples"] if self.splits else []
            lengths = [self.lengths[name].describe()] if name in self.lengths else []
            rows.append((name, "; ".join([*counted, *lengths])))
        return [*rows, *([("classes", describe_balance(self.balance))] if self.balance else [])]


class Finished(Record):
    """The run of a job of which all is there, and the ranks that it was planned for: nothing is looked at before."""

    run: str
    ranks: int

    def describe(self) -> str:
        """In one line."""
        return f"{self.run} is finished and measured: there is nothing to compute"


AnyPreflight = Preflight | TuningPreflight
"""What a job of any kind will do."""


class Verdict(Record):
    """What a gate says of a model, in words, and whether it passes."""

    passed: bool
    reason: str


class Remeasured(Record):
    """The figures of a champion's model, measured anew on what a run was measured on, or why that cannot be done."""

    run: str
    fingerprint: str
    scores: dict[str, float] = Field(default_factory=dict)
    measured_on: AnyBasis | None = None
    problem: str = ""


class Outcome(Record):
    """What a whole pipeline made: the run, its evaluation (None if nothing was held out), its report, the gate's
    verdict.
    """

    run: str
    evaluation: Result | None
    report: str
    promotion: Verdict | None = None
