"""Measures of single texts: what filters compare with their bounds."""

import re
import reprlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from trainer.common.errors import ConfigError
from trainer.curation.functions import digest_sources, load_function
from trainer.curation.measures import Batch, DocumentError, Measure, Rows


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
                raise DocumentError(number, f"{self.function} raised {type(error).__name__}: {error}") from error
            try:
                values[number] = _number(value)
            except ValueError as error:
                raise DocumentError(number, f"{self.function} returned {error}") from error
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
