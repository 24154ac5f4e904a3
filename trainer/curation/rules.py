"""Rules: which measure each kind of filter reads. A new kind is a schema, a line here, and its measure if that is
new.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

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
from trainer.curation import text_measures
from trainer.curation.measures import Measure

MEASURES: dict[type[Rule], Callable[[Any], Measure]] = {
    QualityRule: lambda rule: text_measures.Quality(),
    RepetitionRule: lambda rule: text_measures.Repetition(),
    C4Rule: lambda rule: text_measures.C4(),
    LengthRule: lambda rule: text_measures.Size(),
    LanguageRule: lambda rule: text_measures.Language.of(rule.languages),
    PatternRule: lambda rule: text_measures.Pattern(rule.pattern),
    ScoreRule: lambda rule: text_measures.Score(rule.column),
    FunctionRule: lambda rule: text_measures.Function(rule.function),
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

    def is_for(self, corpus: str) -> bool:
        """Whether a corpus's documents are put to it."""
        return self.corpora is None or corpus in self.corpora

    def breaks(self, values: NDArray[Any]) -> NDArray[np.bool_]:
        """Which documents break it. What is not a number breaks every bound."""
        if self.languages:
            return ~np.isin(values, np.array(self.languages, values.dtype))
        if self.bound.least is not None:
            return ~(values >= self.bound.least)
        return ~(values <= self.bound.most) if self.bound.most is not None else np.isnan(values)

    def tell(self, value: Any) -> str:
        """Why a document of this value goes, in words."""
        if isinstance(self.measure, text_measures.Score) and np.isnan(value):
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
    return [test for test in tests if test.is_for(corpus)]


def columns_of(tests: Iterable[Test]) -> list[str]:
    """The columns of the data that are read beside the text."""
    return sorted({test.measure.column for test in tests if isinstance(test.measure, text_measures.Score)})
