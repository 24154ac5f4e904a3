"""Measures of single texts: what filters compare with their bounds."""

import hashlib
import importlib
import importlib.util
import re
import sys
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from trainer.common.errors import ConfigError
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

    def __call__(self, batch: Batch) -> Rows:
        from trainer.curation.quality import quality

        return _columns(quality(batch.texts))


@dataclass(frozen=True)
class Repetition(Measure):
    """What Gopher's repetition rules compare."""

    name: ClassVar[str] = "repetition"

    def __call__(self, batch: Batch) -> Rows:
        from trainer.curation.repetition import repetition

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
        return {"score": np.array([document.columns.get(self.column, np.nan) for document in batch.documents], np.float64)}


@dataclass(frozen=True)
class Function(Measure):
    """What a function of the user's returns; `source` is the digest of the file that it is in."""

    function: str
    source: str
    name: ClassVar[str] = "function"

    @classmethod
    def of(cls, function: str) -> "Function":
        """Raises `ConfigError` if there is no such function."""
        module = function.partition(":")[0]
        _load(function)
        spec = importlib.util.find_spec(module)
        source = Path(spec.origin).read_bytes() if spec and spec.origin and Path(spec.origin).is_file() else b""
        return cls(function, hashlib.sha256(source).hexdigest())

    def __call__(self, batch: Batch) -> Rows:
        function = _load(self.function)
        values = np.empty(len(batch.documents), np.float64)
        for number, text in enumerate(batch.texts.strings):
            try:
                values[number] = float(function(text))
            except Exception as error:
                raise DocumentError(number, f"{self.function} raised {type(error).__name__}: {error}") from error
        return {"value": values}


def _columns(rows: NDArray[Any]) -> Rows:
    """The fields of a structured array as arrays."""
    assert rows.dtype.names is not None
    return {name: np.ascontiguousarray(rows[name]) for name in rows.dtype.names}


@cache
def _load(function: str) -> Any:
    module, _, name = function.partition(":")
    if "" not in sys.path:
        sys.path.append("")  # functions beside one's configuration, which a console script does not see
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"data.curation.filters: there is no function {function!r}: {error}") from error
