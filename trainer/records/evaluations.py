"""Evaluation results of models of all kinds, as stored and as returned by stages; without heavy imports."""

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, NamedTuple, Self

from pydantic import Field, field_validator, model_validator

from trainer.common.display import plain_score
from trainer.config.evaluation import PREFIX
from trainer.records.basis import ExamplesBasis, HarnessBasis, Record, TextBasis
from trainer.store.details import KeptOutFile
from trainer.store.manifest import fingerprint
from trainer.store.names import Count, Digest, Figure, Key, Share

FORMAT = 5

FIRST = ("loss", "perplexity", "bits_per_byte")
"""The metrics that are listed first."""

ALL = "all corpora"
"""Name of the row with the metrics of all groups together."""


class Criterion(NamedTuple):
    """The validation metric that decides which checkpoint is best.

    `meaning` is a fingerprint of all that determines its value besides the model: a resumed run compares its figures
    with the best so far only if it is the same.
    """

    figure: str
    greater_is_better: bool
    meaning: str = ""


def best_by(job: Mapping[str, Any]) -> str:
    """The metric of a recorded job's criterion."""
    figure: str = job["evaluation"].get("best_by", "loss")
    return figure


class CleanOf(Record):
    """Evaluation sets that share no n-gram of words with a model's training text, and the decisions that ensured it.

    Examples with fewer words than `ngram` are matched as a whole. Of all `texts`, `too_short` have fewer than
    `least_words` and were not searched for.
    """

    ngram: Count
    least_words: Count
    files: list[KeptOutFile]
    decisions: list[str]
    texts: Count
    too_short: Count
    of_base: bool = Field(default=False, exclude_if=lambda value: not value)
    """Whether only the text of a tuned model's base was searched."""

    def describe(self) -> str:
        """In one sentence."""
        paths = list(dict.fromkeys(file.path for file in self.files))
        whose = "base model" if self.of_base else "model"
        return (
            f"The {whose}'s training text shares no {self.ngram}-gram of words with {', '.join(paths)} (by "
            f"{', '.join(self.decisions)}; examples of fewer than {self.least_words} words were not searched for: "
            f"{self.too_short:,} of {self.texts:,})."
        )


class Scores(Record):
    """Metrics of a corpus, split or task, by name, and the counts they are based on: tokens, windows, bytes, examples.

    Losses are means in nats; `perplexity` is the exponential of the loss; `bits_per_byte` refers to the text of the
    predicted tokens.
    """

    figures: dict[str, Figure]
    counts: dict[str, Count] = Field(default={})
    errors: dict[str, Figure] = Field(default={}, exclude_if=lambda value: not value)
    """Standard errors of metrics, if known."""

    @field_validator("figures")
    @classmethod
    def _with_the_loss_first(cls, figures: dict[str, float]) -> dict[str, float]:
        """Sort the metrics in reading order; JSON files have them by name."""
        return {name: figures[name] for name in dict.fromkeys([*FIRST, *figures]) if name in figures}


class Sample(Record):
    """A prompt and the model's continuation; if known, the expected text, and the continuation before tuning."""

    prompt: str
    continuation: str
    expected: str | None = Field(default=None, exclude_if=lambda value: value is None)
    before: str | None = Field(default=None, exclude_if=lambda value: value is None)


class ClassScore(Record):
    """Metrics of one class, as of scikit-learn's precision_recall_fscore_support."""

    name: str
    precision: Share
    recall: Share
    f1: Share
    support: Count


class Classification(Record):
    """A split's confusion matrix (rows: labels, columns: predictions) and the metrics of each class.

    The matrix is empty if several classes may apply to an example, or if there are over a thousand.
    """

    confusion: list[list[Count]]
    classes: list[ClassScore]


class Task(Record):
    """An lm-eval task or group: its identity, and whether its questions were kept out of training.

    `kept_out`: whether all questions of local data with at least `least_words` words were kept out of the training
    text; None if unknown, as for data of the hub.
    """

    version: str
    identity: str
    kept_out: bool | None = None
    least_words: Count | None = None
    greater_is_better: dict[str, bool] = Field(default={}, exclude_if=lambda value: not value)
    """By metric, if lm-eval specifies it."""

    def describe_kept_out(self) -> str:
        """Whether they were kept out, in a few words."""
        if not self.kept_out:
            return "not known" if self.kept_out is None else "no"
        return "yes" if (self.least_words or 0) <= 1 else f"yes, from {self.least_words} words on"


class HarnessRun(Record):
    """The version of lm-eval, the tasks that it was given, and its warnings about the metrics."""

    lm_eval: str
    limit: Count | None = None
    tasks: dict[str, Task]
    doubts: list[str] = Field(default=[])


BASES = {"corpus": TextBasis, "split": ExamplesBasis, "task": HarnessBasis}
"""The type of basis by the kind of group."""


class Result(Record):
    """Evaluation of a model: metrics by group, the data and settings they were measured with, and samples.

    `recipe` contains everything that decides the metrics, as JSON; its fingerprint identifies them. A group is a
    corpus, a split or an lm-eval task; `total` is over all corpora. `data` are the artifacts that were read, `files`
    labelled files outside the store.
    """

    format: int
    fingerprint: str
    recipe: dict[str, Any]
    key: str
    checkpoint: str
    model: str | None = Field(default=None, exclude_if=lambda value: value is None)
    """The key that `checkpoint` resolved to; None for a model outside the store, and in a run's own record."""
    by: Literal["corpus", "split", "task"]
    data: list[Key] = Field(default=[])
    files: list[str] = Field(default=[], exclude_if=lambda value: not value)
    groups: dict[str, Scores]
    total: Scores | None = Field(default=None, exclude_if=lambda value: value is None)
    measured_on: TextBasis | ExamplesBasis | HarnessBasis
    samples: list[Sample] = Field(default=[])
    clean_of: CleanOf | None = Field(default=None, exclude_if=lambda value: value is None)
    """None if unknown for a part of the training data."""
    positive: dict[str, str] = Field(default={}, exclude_if=lambda value: not value)
    """Metrics that refer to one class of two, with that class's name."""
    classification: dict[str, Classification] = Field(default={}, exclude_if=lambda value: not value)
    """By split, for a classifier."""
    predictions: dict[Key, Digest] = Field(default={}, exclude_if=lambda value: not value)
    """Files of predictions, with their SHA-256."""
    asked: HarnessRun | None = Field(default=None, exclude_if=lambda value: value is None)
    """Set for metrics by task."""
    harness: "Result | None" = Field(default=None, exclude_if=lambda value: value is None)
    """lm-eval's results for the same model, stored as a separate record."""
    reused: bool = False

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        """Check that everything read by gates, reports and comparisons is present."""
        if self.format != FORMAT or self.fingerprint != fingerprint(self.recipe):
            raise ValueError("its format is another, or its fingerprint does not match its recipe")
        if not isinstance(self.measured_on, BASES[self.by]):
            raise ValueError(f"measured_on has the wrong type for metrics by {self.by}")
        if isinstance(self.measured_on, TextBasis):
            if self.total is None:
                raise ValueError("it has no metrics of all held-out text")
            known: Iterable[str] = self.measured_on.held_out
        elif self.by == "split":
            if self._judged not in self.groups:
                raise ValueError(f"it has no metrics of the {self._judged} split")
            known = self.groups
        else:
            known = (self.asked.tasks if self.asked else {}).keys() & (self.measured_on.harness or {}).keys()
            if any("examples" not in scores.counts for scores in self.groups.values()):
                raise ValueError("it does not count the examples of each task")
        whole = [self.total] if self.total else []
        if self.by != "task" and any("loss" not in scores.figures for scores in (*whole, *self.groups.values())):
            raise ValueError("it has metrics without a loss")
        if unknown := self.groups.keys() - set(known):
            raise ValueError(f"measured_on lacks {', '.join(sorted(unknown))}")
        return self

    def recorded(self) -> dict[str, Any]:
        """The content of its own record."""
        return self.model_dump(exclude={"reused", "harness"})

    def beside(self, harness: "Result") -> Self:
        """The result combined with lm-eval's results for the same model."""
        basis = self.measured_on.model_copy(update={"harness": harness.measured_on.harness})
        return self.model_copy(update={"harness": harness, "measured_on": basis})

    def basis_of(self, group: str | None) -> TextBasis | ExamplesBasis | None:
        """The basis of a corpus, a split, or of all corpora (None); None if it is not recorded, or for tasks."""
        basis = self.measured_on
        if isinstance(basis, TextBasis):
            if group is None:
                return basis
            own = {"held_out": {group: basis.held_out[group]}}
            return basis.model_copy(
                update={**own, "begun": {name: shards for name, shards in basis.begun.items() if name == group}}
            )
        if isinstance(basis, ExamplesBasis) and group is not None:
            return basis if group == self._judged else basis.others.get(group)
        return None

    @property
    def judged(self) -> Scores:
        """The scores used by a gate: of all groups, the validation split, or new files."""
        return self.total or self.groups[self._judged]

    @property
    def _judged(self) -> str:
        return "test" if self.files else "validation"

    def figures(self) -> dict[str, float]:
        """The judged metrics and those of lm-eval tasks, named as in a gate's `metric`."""
        if self.by == "task":
            return {
                f"{PREFIX}{task}/{name}": value
                for task, scores in self.groups.items()
                for name, value in scores.figures.items()
            }
        return {**self.judged.figures, **(self.harness.figures() if self.harness else {})}

    def by_group(self) -> dict[str, dict[str, float]]:
        """The metrics by group, and those of lm-eval tasks under `harness`."""
        tasks = self.harness.figures() if self.harness else {}
        beside = {PREFIX.rstrip("/"): {name.removeprefix(PREFIX): value for name, value in tasks.items()}}
        return {**{name: scores.figures for name, scores in self.groups.items()}, **(beside if tasks else {})}

    def label(self, figure: str) -> str:
        """A metric's name for display, with the class that it refers to, if any."""
        return label_figure(figure, self.positive)

    def before(self, figure: str, record: Mapping[str, Any]) -> float | None:
        """A metric in the record of an evaluation in training; None if it is missing, or refers to another class."""
        named = self.positive.get(figure)
        value: float | None = record.get(figure)
        return value if named is None or record.get("positive", named) == named else None

    def describe(self) -> str:
        """The judged metrics in one line."""
        figures = self.figures() if self.by == "task" else self.judged.figures
        return ", ".join(f"{self.label(name)} {plain_score(value)}" for name, value in figures.items())

    def rows(self) -> list[dict[str, object]]:
        """A row for each group, and one for all together."""
        return [
            {
                self.by: name,
                **{self.label(figure): _rounded(value) for figure, value in scores.figures.items()},
                **{f"{figure} ±": _rounded(error) for figure, error in scores.errors.items()},
                **{each.replace("_", " "): value for each, value in scores.counts.items()},
                **({"kept out of training": self.asked.tasks[name].describe_kept_out()} if self.asked else {}),
            }
            for name, scores in self._rows()
        ]

    def lines(self) -> list[str]:
        """The rows for a terminal, with notes about the metrics."""
        rows = list(self._rows())
        width = max([10, *(len(name) for name, _ in rows)])
        lines = [f"{name:<{width}} {self._line(name, scores)}" for name, scores in rows]
        doubts = [f"doubtful: {doubt}" for doubt in self.asked.doubts] if self.asked else []
        beside = self.harness.lines() if self.harness else []
        return [*lines, *doubts, *beside, *([self.clean_of.describe()] if self.clean_of else [])]

    def _line(self, group: str, scores: Scores) -> str:
        place = f"{PREFIX}{group}/" if self.by == "task" else ""  # named as in a gate's `metric`
        errors = {name: f" ± {plain_score(error)}" for name, error in scores.errors.items()}
        figures = [
            f"{place}{self.label(name)} {plain_score(value)}{errors.get(name, '')}"
            for name, value in scores.figures.items()
        ]
        counts = [f"{value:,} {name.replace('_', ' ')}" for name, value in scores.counts.items()]
        kept = [f"kept out of training: {self.asked.tasks[group].describe_kept_out()}"] if self.asked else []
        of = ", ".join([*counts, *kept])
        return ", ".join(figures) + (f"   ({of})" if of else "")

    def _rows(self) -> Iterator[tuple[str, Scores]]:
        yield from self.groups.items()
        if self.total is not None:
            yield ALL, self.total


class OfRun(Result):
    """The record of a run's own final model."""

    by: Literal["corpus", "split"]


class OfTasks(Result):
    """The record of lm-eval's results for a run's final model."""

    by: Literal["task"]


def _rounded(value: float) -> float | None:
    """Six significant digits for a table; None if the value is not finite, for which JSON has no number."""
    return float(f"{value:.6g}") if math.isfinite(value) else None


def label_figure(figure: str, positive: dict[str, str]) -> str:
    """A metric's name, with the class that it refers to, if any."""
    return f"{figure} of {positive[figure]!r}" if figure in positive else figure
