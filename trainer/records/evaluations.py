"""What was measured of a model, of whatever kind, as the store holds it and as stages hand it on; free of heavy
imports.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, NamedTuple, Self

from pydantic import Field, field_validator, model_validator

from trainer.config.evaluation import PREFIX
from trainer.records.basis import ExamplesBasis, HarnessBasis, Record, TextBasis
from trainer.store.manifest import fingerprint
from trainer.store.names import Count, Digest, Figure, Key, Share

FORMAT = 5

FIRST = ("loss", "perplexity", "bits_per_byte")
"""The figures that are told first."""

ALL = "all"
"""How the figures of all groups together are called, for people."""


class Criterion(NamedTuple):
    """The validation figure that says which checkpoint is best."""

    figure: str
    greater_is_better: bool


def best_by(job: Mapping[str, Any]) -> str:
    """The figure of a recorded job's criterion."""
    figure: str = job["evaluation"].get("best_by", "loss")
    return figure


class KeptOutFile(Record):
    """A file of an evaluation set, by its content, and the field of it that was looked for."""

    path: str
    field: str
    sha256: str


class CleanOf(Record):
    """Evaluation sets that no text shares an n-gram of words with that a model was trained on, and the decisions for
    that.

    Examples of fewer words than `ngram` count as a whole; those of fewer than `least_words` were not looked for: so
    many, `too_short`, of all `texts`.
    """

    ngram: Count
    least_words: Count
    files: list[KeptOutFile]
    decisions: list[str]
    texts: Count
    too_short: Count

    def describe(self) -> str:
        """In one sentence."""
        paths = list(dict.fromkeys(file.path for file in self.files))
        return (
            f"The text that the model was trained on shares no {self.ngram}-gram of words with {', '.join(paths)} (by "
            f"{', '.join(self.decisions)}; examples of fewer than {self.least_words} words were not looked for: "
            f"{self.too_short:,} of {self.texts:,})."
        )


class Scores(Record):
    """Figures of a corpus, a split or a task, by name, and counts of what they are of: tokens, windows, bytes of text,
    examples.

    Losses are means in nats, `perplexity` is the exponential of one, `bits_per_byte` are of the text that the predicted
    tokens stand for.
    """

    figures: dict[str, Figure]
    counts: dict[str, Count] = Field(default={})
    errors: dict[str, Figure] = Field(default={}, exclude_if=lambda value: not value)
    """Standard errors of figures, where they are known."""

    @field_validator("figures")
    @classmethod
    def _with_the_loss_first(cls, figures: dict[str, float]) -> dict[str, float]:
        """In the order in which one reads of them; JSON files have them by name."""
        return {name: figures[name] for name in dict.fromkeys([*FIRST, *figures]) if name in figures}


class Sample(Record):
    """A prompt, what the model made of it, what stands there in the data, if that is known, and what the model made of
    it before it was tuned, if it was asked.
    """

    prompt: str
    continuation: str
    expected: str | None = Field(default=None, exclude_if=lambda value: value is None)
    before: str | None = Field(default=None, exclude_if=lambda value: value is None)


class ClassScore(Record):
    """How well one class is told, as scikit-learn's precision_recall_fscore_support has it."""

    name: str
    precision: Share
    recall: Share
    f1: Share
    support: Count


class Classification(Record):
    """A split's confusion matrix (rows are labels, columns predictions) and the figures of each class.

    The matrix is empty where several classes may apply to an example.
    """

    confusion: list[list[Count]]
    classes: list[ClassScore]


class Task(Record):
    """A task or a group of tasks of lm-eval: what it is, and whether its questions were kept out of training.

    `kept_out`: whether all questions of local data were kept out of the text that the model was trained on, but for
    those of fewer than `least_words` words; None if that is not known, as of data of the hub.
    """

    version: str
    identity: str
    kept_out: bool | None = None
    least_words: Count | None = None
    greater_is_better: dict[str, bool] = Field(default={}, exclude_if=lambda value: not value)
    """Of its figures, where lm-eval says so."""

    def tell_kept_out(self) -> str:
        """Whether they were kept out, in a few words."""
        if not self.kept_out:
            return "not known" if self.kept_out is None else "no"
        return "yes" if (self.least_words or 0) <= 1 else f"yes, from {self.least_words} words on"


class Asked(Record):
    """What lm-eval was asked, and what is doubtful about its figures, mostly in its own words."""

    lm_eval: str
    limit: Count | None = None
    tasks: dict[str, Task]
    doubts: list[str] = Field(default=[])


BASES = {"corpus": TextBasis, "split": ExamplesBasis, "task": HarnessBasis}
"""What figures are measured on, by what they are of."""


class Result(Record):
    """What was measured of a model: figures by group, what they were measured on and how, and samples.

    `recipe` is all that decides the figures, as JSON; its fingerprint names them. A group is a corpus, a split or a
    task of lm-eval, and `total` all corpora together. `data` are the artifacts that were read, `files` labelled ones
    that are of no artifact.
    """

    format: int
    fingerprint: str
    recipe: dict[str, Any]
    key: str
    checkpoint: str
    model: str | None = Field(default=None, exclude_if=lambda value: value is None)
    """The key that was found under `checkpoint`; None for no model of the store, and in a run's own record."""
    by: Literal["corpus", "split", "task"]
    data: list[Key] = Field(default=[])
    files: list[str] = Field(default=[], exclude_if=lambda value: not value)
    groups: dict[str, Scores]
    total: Scores | None = Field(default=None, exclude_if=lambda value: value is None)
    measured_on: TextBasis | ExamplesBasis | HarnessBasis
    samples: list[Sample] = Field(default=[])
    clean_of: CleanOf | None = Field(default=None, exclude_if=lambda value: value is None)
    """None if that is not known of all that the model was trained on."""
    positive: dict[str, str] = Field(default={}, exclude_if=lambda value: not value)
    """The figures that are of one class of two, and that class's name."""
    classification: dict[str, Classification] = Field(default={}, exclude_if=lambda value: not value)
    """By split, of a model that tells classes."""
    predictions: dict[Key, Digest] = Field(default={}, exclude_if=lambda value: not value)
    """The files of predictions, with their SHA-256."""
    asked: Asked | None = Field(default=None, exclude_if=lambda value: value is None)
    """Of figures by task."""
    harness: "Result | None" = Field(default=None, exclude_if=lambda value: value is None)
    """What lm-eval measured of the same model, which is a record of its own."""
    reused: bool = False

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        """What a gate, a page and a comparison take of it is there."""
        if self.format != FORMAT or self.fingerprint != fingerprint(self.recipe):
            raise ValueError("its format or its fingerprint is not that of its recipe")
        if not isinstance(self.measured_on, BASES[self.by]):
            raise ValueError(f"what it was measured on is not what figures by {self.by} are measured on")
        if isinstance(self.measured_on, TextBasis):
            if self.total is None:
                raise ValueError("it has no figures of all held-out text")
            told: Iterable[str] = self.measured_on.held_out
        elif self.by == "split":
            if self._judged not in self.groups:
                raise ValueError(f"it has no figures of the {self._judged} split")
            told = self.groups
        else:
            told = (self.asked.tasks if self.asked else {}).keys() & (self.measured_on.harness or {}).keys()
            if any("examples" not in scores.counts for scores in self.groups.values()):
                raise ValueError("it does not count the examples of each task")
        whole = [self.total] if self.total else []
        if self.by != "task" and any("loss" not in scores.figures for scores in (*whole, *self.groups.values())):
            raise ValueError("it has figures without a loss")
        if unknown := self.groups.keys() - set(told):
            raise ValueError(f"what {', '.join(sorted(unknown))} was measured on is not said")
        return self

    def recorded(self) -> dict[str, Any]:
        """What its own record holds."""
        return self.model_dump(exclude={"reused", "harness"})

    def beside(self, harness: "Result") -> Self:
        """The figures with what lm-eval measured of the same model."""
        basis = self.measured_on.model_copy(update={"harness": harness.measured_on.harness})
        return self.model_copy(update={"harness": harness, "measured_on": basis})

    def basis_of(self, group: str | None) -> TextBasis | ExamplesBasis | None:
        """What the figures of a corpus, of a split, or of all corpora were measured on; None if that is not recorded,
        or if they are of tasks.
        """
        basis = self.measured_on
        if isinstance(basis, TextBasis):
            return basis if group is None else basis.model_copy(update={"held_out": {group: basis.held_out[group]}})
        if isinstance(basis, ExamplesBasis) and group is not None:
            return basis if group == self._judged else basis.others.get(group)
        return None

    @property
    def judged(self) -> Scores:
        """The scores that a gate asks for: of all groups, of the validation split, or of new files."""
        return self.total or self.groups[self._judged]

    @property
    def _judged(self) -> str:
        return "test" if self.files else "validation"

    def figures(self) -> dict[str, float]:
        """The figures that are judged and those of lm-eval's tasks, as a gate's `metric` names them."""
        if self.by == "task":
            return {
                f"{PREFIX}{task}/{name}": value
                for task, scores in self.groups.items()
                for name, value in scores.figures.items()
            }
        return {**self.judged.figures, **(self.harness.figures() if self.harness else {})}

    def by_group(self) -> dict[str, dict[str, float]]:
        """The figures by group, and those of lm-eval's tasks under `harness`."""
        tasks = self.harness.figures() if self.harness else {}
        beside = {PREFIX.rstrip("/"): {name.removeprefix(PREFIX): value for name, value in tasks.items()}}
        return {**{name: scores.figures for name, scores in self.groups.items()}, **(beside if tasks else {})}

    def label(self, figure: str) -> str:
        """A figure's name for people: it says of which class it is, if it is of one."""
        return label_figure(figure, self.positive)

    def describe(self) -> str:
        """The figures that are judged, in one line."""
        figures = self.figures() if self.by == "task" else self.judged.figures
        return ", ".join(f"{self.label(name)} {value:.4f}" for name, value in figures.items())

    def rows(self) -> list[dict[str, object]]:
        """A row for each group, and one for all of them."""
        return [
            {
                self.by: name,
                **{self.label(figure): round(value, 4) for figure, value in scores.figures.items()},
                **{f"{figure} ±": round(error, 4) for figure, error in scores.errors.items()},
                **{each.replace("_", " "): value for each, value in scores.counts.items()},
                **({"kept out of training": self.asked.tasks[name].tell_kept_out()} if self.asked else {}),
            }
            for name, scores in self._rows()
        ]

    def lines(self) -> list[str]:
        """The same for a terminal, with all that is to be known of the figures."""
        rows = list(self._rows())
        width = max([10, *(len(name) for name, _ in rows)])
        told = [f"{name:<{width}} {self._line(name, scores)}" for name, scores in rows]
        doubts = [f"doubtful: {doubt}" for doubt in self.asked.doubts] if self.asked else []
        beside = self.harness.lines() if self.harness else []
        return [*told, *doubts, *beside, *([self.clean_of.describe()] if self.clean_of else [])]

    def _line(self, group: str, scores: Scores) -> str:
        place = f"{PREFIX}{group}/" if self.by == "task" else ""  # as a gate's `metric` names them
        figures = [
            f"{place}{self.label(name)} {value:.4f}{f' ± {scores.errors[name]:.4f}' if name in scores.errors else ''}"
            for name, value in scores.figures.items()
        ]
        counts = [f"{value:,} {name.replace('_', ' ')}" for name, value in scores.counts.items()]
        kept = [f"kept out of training: {self.asked.tasks[group].tell_kept_out()}"] if self.asked else []
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
    """The record of what lm-eval measured of it."""

    by: Literal["task"]


def label_figure(figure: str, positive: dict[str, str]) -> str:
    """A figure's name with the class that it is of, if it is among those that are of one."""
    return f"{figure} of {positive[figure]!r}" if figure in positive else figure
