"""Rules: which measure each kind of filter reads. A new kind is a schema, a line here, and its measure if that is new."""

from collections.abc import Callable, Iterator, Sequence
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
from trainer.curation import measures
from trainer.curation.measures import Measure

MEASURES: dict[type[Rule], Callable[[Any], Measure]] = {
    QualityRule: lambda rule: measures.Quality(),
    RepetitionRule: lambda rule: measures.Repetition(),
    C4Rule: lambda rule: measures.C4(),
    LengthRule: lambda rule: measures.Size(),
    LanguageRule: lambda rule: measures.Language(),
    PatternRule: lambda rule: measures.Pattern(rule.pattern),
    ScoreRule: lambda rule: measures.Score(rule.column),
    FunctionRule: lambda rule: measures.Function.of(rule.function),
}


class Test(NamedTuple):
    """One bound of a rule, as it is tried: the measure and its array, and what it is called where it is a reason."""

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
        return ~(values <= self.bound.most)

    def show(self, value: Any) -> str:
        """A document's value, in words."""
        return value.decode() if isinstance(value, bytes) else f"{value:g}"

    def describe(self) -> str:
        """What stays, in words."""
        if self.languages:
            return f"one of {', '.join(self.languages)}"
        return f"at least {self.bound.least:g}" if self.bound.least is not None else f"at most {self.bound.most:g}"


def tests_of(rule: Rule) -> Iterator[Test]:
    """A rule's bounds in their order. Raises `ConfigError` if a function of its is not there."""
    measure = MEASURES[type(rule)](rule)
    name = getattr(rule, "name", None) or rule.kind  # type: ignore[attr-defined]
    corpora = tuple(rule.corpora) if rule.corpora is not None else None
    if isinstance(rule, LanguageRule):
        yield Test(f"{name}: language", measure, Bound("language"), corpora, tuple(rule.languages))
    for bound in rule.bounds():
        side = "low" if bound.least is not None else "high"
        yield Test(f"{name}: {bound.field} too {side}", measure, bound, corpora)


def columns_of(tests: Sequence[Test]) -> list[str]:
    """The columns of the data that are read beside the text."""
    return sorted({test.measure.column for test in tests if isinstance(test.measure, measures.Score)})
