"""What was measured of a model, as the store holds it and as stages hand it on; free of heavy imports."""

from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from trainer.config.evaluation import MASKED_FIGURES, PREFIX, TEXT_FIGURES
from trainer.records.basis import ExamplesBasis, HarnessResult, TextBasis
from trainer.store.names import Count, Figure, Share


class Result(BaseModel):
    """Frozen, and refuses fields that it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class KeptOutFile(Result):
    """A file of an evaluation set, by its content, and the field of it that was looked for."""

    path: str
    field: str
    sha256: str


class CleanOf(Result):
    """Evaluation sets that no text shares an n-gram of words with that a model was trained on, and the decisions for
    that.

    Examples of fewer words than `ngram` count as a whole; those of fewer than `least_words` were not looked for: so
    many, `too_short`, of all `texts`. Of older decisions it is not known how many.
    """

    ngram: Count
    least_words: Count
    files: list[KeptOutFile]
    decisions: list[str]
    texts: Count | None = Field(default=None, exclude_if=lambda value: value is None)
    too_short: Count | None = Field(default=None, exclude_if=lambda value: value is None)

    def describe(self) -> str:
        """In one sentence."""
        paths = list(dict.fromkeys(file.path for file in self.files))
        many = "" if self.texts is None else f": {self.too_short:,} of {self.texts:,}"
        return (
            f"The text that the model was trained on shares no {self.ngram}-gram of words with {', '.join(paths)} (by "
            f"{', '.join(self.decisions)}; examples of fewer than {self.least_words} words were not looked for{many})."
        )


class CorpusScore(Result):
    """Mean loss in nats a token, its exponential, the loss in bits a byte of text, and how much was measured.

    `text_bytes` are those that the predicted tokens stand for; None for shards that do not record their text's.
    """

    loss: Figure
    perplexity: Figure
    tokens: Count
    windows: Count
    bits_per_byte: Figure | None = None
    text_bytes: Count | None = None
    accuracy: Share | None = None
    """Of a masked model, the share of the hidden tokens that it tells; the other figures are of these tokens too."""

    def describe(self) -> str:
        """The figures in one line."""
        if self.accuracy is not None:
            return f"loss {self.loss:.4f} nats a hidden token, {self.accuracy:.2%} of them told"
        bits = "" if self.bits_per_byte is None else f", {self.bits_per_byte:.4f} bits a byte"
        return f"loss {self.loss:.4f} nats a token, perplexity {self.perplexity:.1f}{bits}"


class Scores(Result):
    """Scores by corpus, and over all their tokens."""

    corpora: dict[str, CorpusScore]
    total: CorpusScore


class Sample(Result):
    """A prompt and what the model made of it."""

    prompt: str
    continuation: str


class BesideHarness(Result):
    """What was measured of a language model, beside which lm-eval's figures may stand."""

    measured_on: TextBasis | ExamplesBasis | None = None
    harness: HarnessResult | None = None
    """What lm-eval measured of the same model, which is a record of its own."""

    def recorded(self) -> dict[str, Any]:
        """What its own record holds."""
        return self.model_dump(exclude={"reused", "harness"}, exclude_none=True)

    def beside(self, harness: HarnessResult) -> Self:
        """The evaluation with what lm-eval measured of the same model."""
        basis = self.measured_on and self.measured_on.model_copy(update={"harness": harness.identities()})
        return self.model_copy(update={"harness": harness, "measured_on": basis})

    def harness_figures(self) -> dict[str, float]:
        """The figures of lm-eval's tasks, as a gate's `metric` names them."""
        return self.harness.figures() if self.harness else {}

    def harness_lines(self) -> list[str]:
        """The same for a terminal."""
        return self.harness.lines() if self.harness else []


class Evaluation(BesideHarness):
    """What was measured, on what, and the result."""

    format: int
    fingerprint: str
    key: str
    checkpoint: str
    shards: list[str]
    context: int
    scores: Scores
    samples: list[Sample]
    measured_on: TextBasis | None = None
    """None for shards that do not record their held-out text."""
    clean_of: CleanOf | None = None
    """None if that is not known of all that the model was trained on."""
    model: str | None = None
    """The key that was found under `checkpoint`; None for no model of the store, and in a run's own record."""
    reused: bool = False

    def figures(self) -> dict[str, float]:
        """The figures of all held-out text and of lm-eval's tasks, as a gate's `metric` names them."""
        names = dict.fromkeys((*TEXT_FIGURES, *MASKED_FIGURES))
        total = self.scores.total.model_dump(include=set(names), exclude_none=True)
        return {**{name: total[name] for name in names if name in total}, **self.harness_figures()}

    def describe(self) -> str:
        """The figures in one line."""
        return f"held-out {self.scores.total.describe()}"

    def rows(self) -> list[dict[str, object]]:
        """A row for each corpus, and one for all of them."""
        return [
            {
                "corpus": name,
                "loss": round(score.loss, 4),
                "perplexity": round(score.perplexity, 2),
                "bits a byte": None if score.bits_per_byte is None else round(score.bits_per_byte, 4),
                "tokens": score.tokens,
            }
            for name, score in self._by_corpus()
        ]

    def lines(self) -> list[str]:
        """The same for a terminal."""
        told = []
        for name, score in self._by_corpus():
            bits = "" if score.bits_per_byte is None else f"   {score.bits_per_byte:7.4f} bits a byte"
            told.append(
                f"{name:<16} loss {score.loss:7.4f}   perplexity {score.perplexity:10.2f}{bits}   {score.tokens:,} "
                "tokens"
            )
        return [*told, *self.harness_lines(), *([self.clean_of.describe()] if self.clean_of else [])]

    def _by_corpus(self) -> list[tuple[str, CorpusScore]]:
        return [*self.scores.corpora.items(), ("all", self.scores.total)]


class ClassScore(Result):
    """How well one class is told, as scikit-learn's precision_recall_fscore_support has it."""

    name: str
    precision: Share
    recall: Share
    f1: Share
    support: Count


class Classification(Result):
    """A split's confusion matrix (rows are labels, columns predictions) and the figures of each class.

    The matrix is empty where several classes may apply to an example.
    """

    confusion: list[list[Count]]
    classes: list[ClassScore]


class SplitEvaluation(Result):
    """What was measured of a model on an encoded set: figures by split."""

    format: int
    fingerprint: str
    key: str
    checkpoint: str
    encoded: str
    files: list[str] = Field(default=[], exclude_if=lambda value: not value)
    """The labelled files that it was measured on, where these are not of the encoded set."""
    scores: dict[str, dict[str, Figure]]
    measured_on: ExamplesBasis | None = None
    clean_of: CleanOf | None = None
    """Of the files that it was measured on, if the text of the run that it began with is clean of all of them."""
    positive: dict[str, str] = {}
    """The figures that are of one class of two, and that class's name."""
    model: str | None = None
    """The key that was found under `checkpoint`; None in a run's own record."""
    reused: bool = False

    @model_validator(mode="after")
    def _has_the_figures_of_a_gate(self) -> Self:
        if "validation" not in self.scores and not self.files:
            raise ValueError("it has no figures of the validation split")
        return self

    def figures(self) -> dict[str, float]:
        """The figures of the validation split, as a gate's `metric` names them; or of new files."""
        return self.scores["test" if self.files else "validation"]

    def all_figures(self) -> dict[str, dict[str, float]]:
        """The figures by split."""
        return self.scores

    def describe(self) -> str:
        """The same in one line."""
        return ", ".join(f"{self.label(name)} {value:.4f}" for name, value in self.figures().items())

    def rows(self) -> list[dict[str, object]]:
        """A row for each labelled split."""
        return [
            {"split": split, **{self.label(name): value for name, value in figures.items()}}
            for split, figures in self.scores.items()
        ]

    def lines(self) -> list[str]:
        """The same for a terminal."""
        told = [
            f"{split:<10} " + ", ".join(f"{self.label(name)} {value:.4f}" for name, value in figures.items())
            for split, figures in self.scores.items()
        ]
        return [*told, *([self.clean_of.describe()] if self.clean_of else [])]

    def label(self, figure: str) -> str:
        """A figure's name for people: it says of which class it is, if it is of one."""
        return label_figure(figure, self.positive)


class FinetuneEvaluation(SplitEvaluation):
    """What was measured of a fine-tuned model: figures by split, and the digests of its prediction files."""

    classification: dict[str, Classification]
    predictions: dict[str, str]
    samples: ClassVar[list[Sample]] = []
    """A classifier continues no prompts."""


class Answer(Sample):
    """A held-out conversation up to its last answer, that which the model gives, and the one that stands there."""

    expected: str


class ChatEvaluation(SplitEvaluation, BesideHarness):
    """What was measured of a model that answers: figures by split, and some of its answers to held-out questions."""

    answer_tokens: dict[str, Count]
    """The tokens that were predicted, by split."""
    answer_bytes: dict[str, Count] = {}
    """The bytes of the text of the answers, by split."""
    samples: list[Answer]

    def figures(self) -> dict[str, float]:
        """The figures of the validation split and of lm-eval's tasks, as a gate's `metric` names them."""
        return {**super().figures(), **self.harness_figures()}

    def all_figures(self) -> dict[str, dict[str, float]]:
        """The figures by split, and those of lm-eval's tasks under `harness`."""
        harness = {name.removeprefix(PREFIX): value for name, value in self.harness_figures().items()}
        return {**self.scores, **({PREFIX.rstrip("/"): harness} if harness else {})}

    def lines(self) -> list[str]:
        """The figures by split and of lm-eval's tasks, for a terminal."""
        return [*super().lines(), *self.harness_lines()]


RunEvaluation = Evaluation | FinetuneEvaluation | ChatEvaluation
"""What was measured of a model of any kind."""


def label_figure(figure: str, positive: dict[str, str]) -> str:
    """A figure's name with the class that it is of, if it is among those that are of one."""
    return f"{figure} of {positive[figure]!r}" if figure in positive else figure
