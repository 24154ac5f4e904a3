"""Measures: what is found out about each document once, and compared with thresholds as often as these change; and the
tests of the rules that compare it.

A measure takes a batch of texts and gives arrays with a row for each. What it gives is kept under its name and options.
A new kind of filter is a schema, a line of `MEASURES`, and its measure, one class, if that is new.
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
from trainer.curation.characters import UNICODE
from trainer.curation.functions import digest_sources, load_function
from trainer.curation.texts import Texts, matching
from trainer.data.pieces import Piece
from trainer.data.readers import Document
from trainer.store.manifest import fingerprint

Rows = dict[str, NDArray[Any]]
"""Arrays by name, each with one row a document."""

Place = tuple[str, Piece, int]
"""Where a document is: its corpus, its piece, and how many stand before it there."""


class Batch:
    """Some documents, with their places if these are told, and their texts as measures look at them."""

    def __init__(self, documents: Sequence[Document], places: Sequence[Place] = ()) -> None:
        self.documents, self.places = documents, places
        self.texts = Texts([document.text for document in documents])

    def wrong(self, number: int, message: str) -> CorpusError:
        """The error that something is wrong with one of the documents."""
        return PlaceError(*self.places[number], message) if self.places else CorpusError(message)

    @cached_property
    def matching(self) -> Texts:
        """The texts as they are compared with evaluation sets."""
        return matching(self.texts)


def composed(texts: Texts) -> Texts:
    """Texts in the normal form NFC."""
    if all(unicodedata.is_normalized("NFC", text) for text in texts.strings):
        return texts
    return Texts([unicodedata.normalize("NFC", text).encode() for text in texts.strings])


@dataclass(frozen=True)
class Measure:
    """What is found out about documents. It is sent to workers, and named by its class's `name` and its own fields."""

    name: ClassVar[str]
    version: ClassVar[int] = 1
    """Raised when it gives other figures, so that those of before are not taken for its own."""

    def __call__(self, batch: Batch) -> Rows:
        raise NotImplementedError

    def made_by(self) -> list[Any]:
        """The versions of libraries, as far as others give other figures."""
        return []

    def options(self) -> dict[str, Any]:
        """What the figures depend on besides the text and the program."""
        return asdict(self)

    @property
    def folder(self) -> str:
        """What its files are kept under: its name, and a digest of all that they depend on besides the text."""
        return f"{self.name}-{fingerprint([self.version, self.options(), UNICODE, *self.made_by()])}"


class PlaceError(CorpusError):
    """Something is wrong with a document of a corpus's piece; `number` is how many stand before it there."""

    def __init__(self, corpus: str, piece: Piece, number: int, message: str) -> None:
        super().__init__(message)
        self.corpus, self.piece, self.number = corpus, piece, number

    def __reduce__(self) -> Any:
        return PlaceError, (self.corpus, self.piece, self.number, str(self))


@dataclass(frozen=True)
class Size(Measure):
    """The bytes of UTF-8 of each document."""

    name: ClassVar[str] = "size"

    def __call__(self, batch: Batch) -> Rows:
        return {"bytes": np.array([len(document.text) for document in batch.documents], np.int64)}


@dataclass(frozen=True)
class Quality(Measure):
    """What Gopher's quality rules compare."""

    name: ClassVar[str] = "quality"
    version: ClassVar[int] = 2

    def __call__(self, batch: Batch) -> Rows:
        from trainer.curation.gopher import quality

        return _columns(quality(batch.texts))


@dataclass(frozen=True)
class Repetition(Measure):
    """What Gopher's repetition rules compare."""

    name: ClassVar[str] = "repetition"
    version: ClassVar[int] = 2

    def __call__(self, batch: Batch) -> Rows:
        from trainer.curation.gopher import repetition

        return _columns(repetition(batch.texts))


@dataclass(frozen=True)
class C4(Measure):
    """What C4's rules compare."""

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
        """Raises `ConfigError` for a language that the model does not know."""
        from trainer.curation.language import languages

        if unknown := [name for name in wanted if name not in languages()]:
            known = ", ".join(sorted(languages()))
            raise ConfigError(f"data.curation.filters: py3langid knows no language {unknown[0]!r}; it knows {known}")
        return cls()

    def made_by(self) -> list[Any]:
        return [version("py3langid")]

    def __call__(self, batch: Batch) -> Rows:
        from trainer.curation.language import language

        return _columns(language(batch.texts))


@dataclass(frozen=True)
class Pattern(Measure):
    """How often a regular expression matches."""

    pattern: str
    name: ClassVar[str] = "pattern"

    def __call__(self, batch: Batch) -> Rows:
        search = re.compile(self.pattern)
        return {"matches": np.array([sum(1 for _ in search.finditer(text)) for text in batch.texts.strings], np.int32)}


@dataclass(frozen=True)
class Score(Measure):
    """A number of the data, of a column beside the text; not a number where there is none."""

    column: str
    name: ClassVar[str] = "score"

    def __call__(self, batch: Batch) -> Rows:
        return {
            "score": np.array([document.columns.get(self.column, np.nan) for document in batch.documents], np.float64)
        }


@dataclass(frozen=True)
class Function(Measure):
    """What a function of the user's returns."""

    function: str
    name: ClassVar[str] = "function"

    @cached_property
    def source(self) -> str:
        """The digest of the files that it comes from, which is sent to workers with it once it was asked for.

        Raises `ConfigError` if there is no such function. What was decided can be told without it.
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
            except Exception as error:
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
    """What a function of the user's returned, as bounds are compared with it. Raises `ValueError` for what is no
    number.
    """
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
    """One bound of a rule, as it is tried: the measure and its array, and what it is called where it is a reason.

    A bound without a limit, and without languages, is that there is a number.
    """

    reason: str
    measure: Measure
    bound: Bound
    corpora: tuple[str, ...] | None = None
    languages: tuple[str, ...] = ()

    def breaks(self, values: NDArray[Any]) -> NDArray[np.bool_]:
        """Which documents break it. What is not a number breaks every bound."""
        if self.languages:
            return ~np.isin(values, np.array(self.languages, values.dtype))
        if self.bound.least is not None:
            return ~(values >= self.bound.least)
        return ~(values <= self.bound.most) if self.bound.most is not None else np.isnan(values)

    def tell(self, value: Any) -> str:
        """Why a document of this value goes, in words."""
        if isinstance(self.measure, Score) and np.isnan(value):
            return f"it has no column {self.measure.column!r}, or no number in it; documents without one are dropped"
        return f"{self.bound.field} {self.show(value)}, {self.describe()} stays"

    def show(self, value: Any) -> str:
        """A document's value, in words."""
        if isinstance(value, bytes):
            return value.decode()
        bound = self.bound.least if self.bound.least is not None else self.bound.most
        return f"{value:g}" if f"{value:g}" != f"{bound:g}" or value == bound else f"{float(value):.9g}"

    def describe(self) -> str:
        """What stays, in words."""
        if self.languages:
            return f"one of {', '.join(self.languages)}"
        return f"at least {self.bound.least:g}" if self.bound.least is not None else f"at most {self.bound.most:g}"


def all_tests(rules: Sequence[Rule]) -> list[Test]:
    """The bounds of all rules in their order, each with a reason of its own. Raises `ConfigError` as `tests_of`."""
    labels = [rule.label for rule in rules]
    tests: list[Test] = []
    for number, rule in enumerate(rules):
        before = labels[:number].count(rule.label)
        tests += tests_of(rule, f"{rule.label} ({before + 1})" if before else rule.label)
    return tests


def tests_of(rule: Rule, label: str) -> Iterator[Test]:
    """A rule's bounds in their order. Raises `ConfigError` if a language of its is not known."""
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
    """Those that a corpus's documents are put to."""
    return [test for test in tests if test.corpora is None or corpus in test.corpora]


def columns_of(tests: Iterable[Test]) -> list[str]:
    """The columns of the data that are read beside the text."""
    return sorted({test.measure.column for test in tests if isinstance(test.measure, Score)})
