"""Measures of documents, which are computed once and compared with thresholds whenever these change; and rules' tests.

A measure maps a batch of texts to arrays with one row per document, which are stored under its name and options. A new
kind of filter is a schema, a line of `MEASURES`, and a measure class if no existing one fits.
"""

import re
import reprlib
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from importlib.metadata import version
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainer.common.errors import ConfigError, CorpusError
from trainer.config.curation import (
    Bound,
    C4Rule,
    FunctionRule,
    LanguageRule,
    LengthRule,
    PatternRule,
    QualityRule,
    RepetitionRule,
    Rule,
    ScoreRule,
)
from trainer.curation.functions import digest_sources, load_function
from trainer.curation.texts import Texts, matching
from trainer.data.decisions import UNICODE
from trainer.data.pieces import Piece
from trainer.data.readers import Document
from trainer.store.manifest import fingerprint

Rows = dict[str, NDArray[Any]]
"""Arrays by name, each with one row per document."""

Place = tuple[str, Piece, int]
"""The location of a document: its corpus, its piece, and the number of documents before it in the piece."""


class Batch:
    """Some documents, with their places if known, and their texts in the forms that measures need."""

    def __init__(self, documents: Sequence[Document], places: Sequence[Place] = ()) -> None:
        self.documents, self.places = documents, places
        self.texts = Texts([document.text for document in documents])

    def wrong(self, number: int, message: str) -> CorpusError:
        """An error about one of the documents, with its place if known."""
        return PlaceError(*self.places[number], message) if self.places else CorpusError(message)

    @cached_property
    def matching(self) -> Texts:
        """The texts in the form that is compared with evaluation sets."""
        return matching(self.texts)


def composed(texts: Texts) -> Texts:
    """Texts in the normal form NFC."""
    if all(unicodedata.is_normalized("NFC", text) for text in texts.strings):
        return texts
    return Texts([unicodedata.normalize("NFC", text).encode() for text in texts.strings])


@dataclass(frozen=True)
class Measure:
    """A property of documents. It is sent to workers; its class's `name` and its own fields identify it."""

    name: ClassVar[str]
    version: ClassVar[int] = 1
    """Increase it when the measure gives other values, so that stored values are computed again."""

    def __call__(self, batch: Batch) -> Rows:
        raise NotImplementedError

    def made_by(self) -> list[Any]:
        """The versions of libraries that affect the values."""
        return []

    def options(self) -> dict[str, Any]:
        """The options that affect the values, besides the text and the program."""
        return asdict(self)

    @property
    def folder(self) -> str:
        """The folder of its files: its name, and a digest of all that the values depend on besides the text."""
        return f"{self.name}-{fingerprint([self.version, self.options(), UNICODE, *self.made_by()])}"


class PlaceError(CorpusError):
    """A problem with a document of a corpus's piece; `number` counts the documents before it there."""

    def __init__(self, corpus: str, piece: Piece, number: int, message: str) -> None:
        super().__init__(message)
        self.corpus, self.piece, self.number = corpus, piece, number

    def __reduce__(self) -> Any:
        return PlaceError, (self.corpus, self.piece, self.number, str(self))


@dataclass(frozen=True)
class Size(Measure):
    """The UTF-8 bytes of each document."""

    name: ClassVar[str] = "size"

    def __call__(self, batch: Batch) -> Rows:
        return {"bytes": np.array([len(document.text) for document in batch.documents], np.int64)}


@dataclass(frozen=True)
class Quality(Measure):
    """The values of Gopher's quality rules."""

    name: ClassVar[str] = "quality"
    version: ClassVar[int] = 2

    def __call__(self, batch: Batch) -> Rows:
        from trainer.curation.gopher import quality

        return _columns(quality(batch.texts))


@dataclass(frozen=True)
class Repetition(Measure):
    """The values of Gopher's repetition rules."""

    name: ClassVar[str] = "repetition"
    version: ClassVar[int] = 2

    def __call__(self, batch: Batch) -> Rows:
        from trainer.curation.gopher import repetition

        return _columns(repetition(batch.texts))


@dataclass(frozen=True)
class C4(Measure):
    """The values of C4's rules."""

    name: ClassVar[str] = "c4"

    def __call__(self, batch: Batch) -> Rows:
        from trainer.curation.c4 import c4

        return _columns(c4(batch.texts))


@dataclass(frozen=True)
class Language(Measure):
    """Each document's most likely language."""

    name: ClassVar[str] = "language"

    @classmethod
    def of(cls, wanted: Sequence[str]) -> "Language":
        """Raise `ConfigError` for a language that the model does not know."""
        from trainer.curation.language import languages

        if unknown := [name for name in wanted if name not in languages()]:
            known = ", ".join(sorted(languages()))
            raise ConfigError(f"data.curation.filters: py3langid has no language {unknown[0]!r}; it has {known}")
        return cls()

    def made_by(self) -> list[Any]:
        return [version("py3langid")]

    def __call__(self, batch: Batch) -> Rows:
        from trainer.curation.language import language

        return _columns(language(batch.texts))


@dataclass(frozen=True)
class Pattern(Measure):
    """The number of matches of a regular expression."""

    pattern: str
    name: ClassVar[str] = "pattern"

    def __call__(self, batch: Batch) -> Rows:
        search = re.compile(self.pattern)
        return {"matches": np.array([sum(1 for _ in search.finditer(text)) for text in batch.texts.strings], np.int32)}


@dataclass(frozen=True)
class Score(Measure):
    """A number from a column of the data beside the text; NaN if there is none."""

    column: str
    name: ClassVar[str] = "score"

    def __call__(self, batch: Batch) -> Rows:
        return {
            "score": np.array([document.columns.get(self.column, np.nan) for document in batch.documents], np.float64)
        }


@dataclass(frozen=True)
class Function(Measure):
    """The return value of a user's function."""

    function: str
    name: ClassVar[str] = "function"

    @cached_property
    def source(self) -> str:
        """The digest of its source files; once computed, it is sent to workers with the measure.

        Raises `ConfigError` if there is no such function. Decisions are shown without it.
        """
        found = digest_sources(self.function)
        load_function(self.function, found)
        return found

    def options(self) -> dict[str, Any]:
        return {**super().options(), "source": self.source}

    def __call__(self, batch: Batch) -> Rows:
        function = load_function(self.function, self.source)
        values = np.empty(len(batch.documents), np.float64)
        for number, text in enumerate(batch.texts.strings):
            try:
                value = function(text)
            except (Exception, SystemExit) as error:  # else a call of sys.exit would end the worker without a message
                raise batch.wrong(number, f"{self.function} raised {type(error).__name__}: {error}") from error
            try:
                values[number] = _number(value)
            except ValueError as error:
                raise batch.wrong(number, f"{self.function} returned {error}") from error
        return {"value": values}


def _columns(rows: NDArray[Any]) -> Rows:
    """The fields of a structured array as arrays."""
    assert rows.dtype.names is not None
    return {name: np.ascontiguousarray(rows[name]) for name in rows.dtype.names}


def _number(value: Any) -> float:
    """The return value of a user's function as a float; raises `ValueError` unless it is a number or a boolean."""
    if not isinstance(value, (bool, int, float, np.bool_, np.integer, np.floating)) or value != value:
        raise ValueError(f"{reprlib.repr(value)}, expected true, false or a number")
    try:
        return float(value)
    except OverflowError as error:
        raise ValueError(f"a whole number of {int(value).bit_length():,} bits, expected less than 2**1024") from error


MEASURES: dict[type[Rule], Callable[[Any], Measure]] = {
    QualityRule: lambda rule: Quality(),
    RepetitionRule: lambda rule: Repetition(),
    C4Rule: lambda rule: C4(),
    LengthRule: lambda rule: Size(),
    LanguageRule: lambda rule: Language.of(rule.languages),
    PatternRule: lambda rule: Pattern(rule.pattern),
    ScoreRule: lambda rule: Score(rule.column),
    FunctionRule: lambda rule: Function(rule.function),
}


class Test(NamedTuple):
    """One bound of a rule with its measure; `reason` is its name in decisions.

    A bound without limits and languages requires that there is a number.
    """

    reason: str
    measure: Measure
    bound: Bound
    corpora: tuple[str, ...] | None = None
    languages: tuple[str, ...] = ()

    def breaks(self, values: NDArray[Any]) -> NDArray[np.bool_]:
        """Which documents fail; NaN fails every bound."""
        if self.languages:
            return ~np.isin(values, np.array(self.languages, values.dtype))
        if self.bound.least is not None:
            return ~(values >= self.bound.least)
        return ~(values <= self.bound.most) if self.bound.most is not None else np.isnan(values)

    def explain(self, value: Any) -> str:
        """Explain why a document with this value is dropped."""
        if isinstance(self.measure, Score) and np.isnan(value):
            return f"it has no number in the column {self.measure.column!r}; documents without one are dropped"
        return f"{self.bound.field} {self.show(value)}, expected {self.describe()}"

    def show(self, value: Any) -> str:
        """A document's value as text, with enough digits to be on its side of the bound; whole numbers in full."""
        if isinstance(value, bytes):
            return value.decode()
        bound = self.bound.least if self.bound.least is not None else self.bound.most
        texts = (f"{value:.{digits}g}" for digits in (15 if float(value).is_integer() else 6, 9, 15, 17))
        return next(text for text in texts if np.sign(type(value)(text) - bound) == np.sign(value - bound))

    def describe(self) -> str:
        """The accepted values as text."""
        if self.languages:
            return f"one of {', '.join(self.languages)}"
        least, most = self.bound.least, self.bound.most
        return f"at least {least:.15g}" if least is not None else f"at most {most:.15g}"


def all_tests(rules: Sequence[Rule]) -> list[Test]:
    """The bounds of all rules in order, each with a unique reason. Raises `ConfigError` as `tests_of`."""
    labels = [rule.label for rule in rules]
    tests: list[Test] = []
    for number, rule in enumerate(rules):
        before = labels[:number].count(rule.label)
        tests += tests_of(rule, f"{rule.label} ({before + 1})" if before else rule.label)
    return tests


def tests_of(rule: Rule, label: str) -> Iterator[Test]:
    """A rule's bounds in order. Raises `ConfigError` for an unknown language."""
    measure = MEASURES[type(rule)](rule)
    corpora = tuple(rule.corpora) if rule.corpora is not None else None
    if isinstance(rule, LanguageRule):
        yield Test(f"{label}: language", measure, Bound("language"), corpora, tuple(rule.languages))
    if isinstance(rule, ScoreRule):
        yield Test(f"{label}: no number", measure, Bound("score"), corpora)
    for bound in rule.bounds():
        side = "low" if bound.least is not None else "high"
        yield Test(f"{label}: {bound.field} too {side}", measure, bound, corpora)


def of_corpus(tests: Sequence[Test], corpus: str) -> list[Test]:
    """The tests that apply to a corpus."""
    return [test for test in tests if test.corpora is None or corpus in test.corpora]


def columns_of(tests: Iterable[Test]) -> list[str]:
    """The columns of the data that are read besides the text."""
    return sorted({test.measure.column for test in tests if isinstance(test.measure, Score)})
