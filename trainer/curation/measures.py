"""Measures: what is found out about each document once, and compared with thresholds as often as these change.

A measure takes a batch of texts and gives arrays with a row for each. What it gives is kept under its name and options: a
new one is one class here, and one line where its rule asks for it.
"""

import hashlib
import importlib
import importlib.util
import re
import sys
import unicodedata
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from trainer.common.errors import ConfigError, CorpusError
from trainer.config.curation import ExactConfig, NearConfig
from trainer.corpus.readers import Document
from trainer.curation.arrays import names_of, read_arrays
from trainer.curation.characters import UNICODE
from trainer.curation.texts import Texts, shingles
from trainer.store.manifest import fingerprint
from trainer.store.storage import Store

Rows = dict[str, NDArray[Any]]
"""Arrays by name, each with one row a document."""

KEYS = "keys-{:03d}"
"""Names of arrays, uint64 with some columns, of which documents share a row that are duplicates of each other."""

NO_KEY = np.uint64(0)
"""Of what is no duplicate of anything."""


class Batch:
    """Some documents, and their texts as measures look at them."""

    def __init__(self, documents: Sequence[Document]) -> None:
        self.documents = documents
        self.texts = Texts([document.text for document in documents])


class Measure(Protocol):
    """What is found out about documents. It is sent to workers, and named by its class's `name` and its own fields."""

    name: ClassVar[str]
    version: ClassVar[int]

    def __call__(self, batch: Batch) -> Rows: ...


def folder_of(measure: Measure) -> str:
    """What a measure's files are kept under: its name, and a digest of all that it depends on besides the text."""
    options = {name: value for name, value in asdict(measure).items() if name != "url"}  # type: ignore[call-overload]
    return f"{measure.name}-{fingerprint([measure.version, options, UNICODE, *_library_of(measure)])}"


def _library_of(measure: Measure) -> list[Any]:
    """The version of the library that a measure is made by, as far as others give other figures."""
    if isinstance(measure, Signature):
        from rensa import RMinHash

        return [RMinHash.ALGORITHM_VERSION]
    return [version("py3langid")] if isinstance(measure, Language) else []


@dataclass(frozen=True)
class Size:
    """The bytes of UTF-8 of each document."""

    name: ClassVar[str] = "size"
    version: ClassVar[int] = 1

    def __call__(self, batch: Batch) -> Rows:
        return {"bytes": np.array([len(document.text) for document in batch.documents], np.int64)}


@dataclass(frozen=True)
class Digest:
    """128 bits of BLAKE2b of each document's normalised text."""

    normalise: tuple[str, ...]
    name: ClassVar[str] = "digest"
    version: ClassVar[int] = 1

    @classmethod
    def of(cls, options: ExactConfig) -> "Digest":
        return cls(tuple(sorted(set(options.normalise))))

    def __call__(self, batch: Batch) -> Rows:
        texts = (self.normalised(text).encode() for text in batch.texts.strings)
        found = b"".join(hashlib.blake2b(text, digest_size=16).digest() for text in texts)
        return {KEYS.format(0): np.frombuffer(found, "<u8").reshape(-1, 2)}

    def normalised(self, text: str) -> str:
        """A text without what does not count."""
        if "unicode" in self.normalise:
            text = unicodedata.normalize("NFC", text)
        if "case" in self.normalise:
            text = text.casefold()
        if "punctuation" in self.normalise:
            text = re.sub(r"[^\w\s]", "", text)
        return " ".join(text.split()) if "space" in self.normalise else text


@dataclass(frozen=True)
class Signature:
    """A MinHash signature of each document's n-grams, each band of it as one number (Leskovec et al., 3.4.1)."""

    ngram: int
    bands: int
    rows: int
    seed: int
    name: ClassVar[str] = "signature"
    version: ClassVar[int] = 1

    @classmethod
    def of(cls, options: NearConfig) -> "Signature":
        return cls(options.ngram, options.bands, options.rows, options.seed)

    def __call__(self, batch: Batch) -> Rows:
        hashes, starts = shingles(batch.texts, self.ngram)
        minima = self.minima(hashes, starts).reshape(len(starts) - 1, self.bands, self.rows)
        some = np.diff(starts) > 0  # a text without a word resembles nothing
        return {KEYS.format(band): np.where(some, _mixed(minima[:, band]), NO_KEY)[:, None] for band in range(self.bands)}

    def minima(self, hashes: NDArray[np.uint64], starts: NDArray[np.int64]) -> NDArray[np.uint64]:
        """The minima, `bands * rows` a text, of the hashes of its n-grams."""
        from rensa import RMinHash

        offsets, minima = starts.astype(np.uint64), self.bands * self.rows
        found = RMinHash.digest_matrix_from_flat_token_hashes(hashes, offsets, minima, self.seed)
        return np.array(found.to_rows(), np.uint64)


def _mixed(rows: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """One number for each row of numbers, other ones for other rows but for one pair in 2**64, and never 0."""
    mixed = np.full(len(rows), 0x9E3779B97F4A7C15, np.uint64)
    for column in rows.T:
        mixed = (mixed ^ column) * np.uint64(0xBF58476D1CE4E5B9)
        mixed ^= mixed >> np.uint64(31)
        mixed *= np.uint64(0x94D049BB133111EB)
        mixed ^= mixed >> np.uint64(29)
    return np.maximum(mixed, np.uint64(1))


@dataclass(frozen=True)
class Quality:
    """What Gopher's quality rules compare."""

    name: ClassVar[str] = "quality"
    version: ClassVar[int] = 1

    def __call__(self, batch: Batch) -> Rows:
        from trainer.curation.quality import quality

        return _columns(quality(batch.texts))


@dataclass(frozen=True)
class Repetition:
    """What Gopher's repetition rules compare."""

    name: ClassVar[str] = "repetition"
    version: ClassVar[int] = 1

    def __call__(self, batch: Batch) -> Rows:
        from trainer.curation.repetition import repetition

        return _columns(repetition(batch.texts))


@dataclass(frozen=True)
class C4:
    """What C4's rules compare."""

    name: ClassVar[str] = "c4"
    version: ClassVar[int] = 1

    def __call__(self, batch: Batch) -> Rows:
        from trainer.curation.c4 import c4

        return _columns(c4(batch.texts))


@dataclass(frozen=True)
class Language:
    """Each document's most likely language."""

    name: ClassVar[str] = "language"
    version: ClassVar[int] = 1

    def __call__(self, batch: Batch) -> Rows:
        from trainer.curation.language import language

        return _columns(language(batch.texts))


def _columns(rows: NDArray[Any]) -> Rows:
    """The fields of a structured array as arrays."""
    assert rows.dtype.names is not None
    return {name: np.ascontiguousarray(rows[name]) for name in rows.dtype.names}


@dataclass(frozen=True)
class Pattern:
    """How often a regular expression matches."""

    pattern: str
    name: ClassVar[str] = "pattern"
    version: ClassVar[int] = 1

    def __call__(self, batch: Batch) -> Rows:
        search = re.compile(self.pattern)
        return {"matches": np.array([sum(1 for _ in search.finditer(text)) for text in batch.texts.strings], np.int32)}


@dataclass(frozen=True)
class Score:
    """A number of the data, of a column beside the text; not a number where there is none."""

    column: str
    name: ClassVar[str] = "score"
    version: ClassVar[int] = 1

    def __call__(self, batch: Batch) -> Rows:
        return {"score": np.array([document.columns.get(self.column, np.nan) for document in batch.documents], np.float64)}


@dataclass(frozen=True)
class Function:
    """What a function of the user's returns; `source` is the digest of the file that it is in."""

    function: str
    source: str
    name: ClassVar[str] = "function"
    version: ClassVar[int] = 1

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


@dataclass(frozen=True)
class Overlap:
    """How many n-grams each document has in common with evaluation sets, whose hashes are in the store, under `key`."""

    url: str
    key: str
    name: ClassVar[str] = "overlap"
    version: ClassVar[int] = 1

    def __call__(self, batch: Batch) -> Rows:
        found = np.zeros(len(batch.documents), np.int32)
        for ngram, wanted in overlaps(self).items():
            hashes, starts = shingles(batch.texts, ngram)
            shared = np.concatenate([[0], np.cumsum(np.isin(hashes, wanted))])
            found += (shared[starts[1:]] - shared[starts[:-1]]).astype(np.int32)
        return {"ngrams": found}


@cache
def overlaps(of: Overlap) -> dict[int, NDArray[np.uint64]]:
    """The hashes of evaluation sets by the length of their n-grams."""
    store = Store(of.url)
    names = names_of(store, of.key)
    return {int(name): hashes for name, hashes in zip(names, read_arrays(store, of.key, *names), strict=True)}


class DocumentError(CorpusError):
    """Something is wrong with a document of a batch, of which this is the number."""

    def __init__(self, number: int, message: str) -> None:
        super().__init__(message)
        self.number = number

    def __reduce__(self) -> Any:
        return DocumentError, (self.number, str(self))


@cache
def _load(function: str) -> Any:
    module, _, name = function.partition(":")
    if "" not in sys.path:
        sys.path.append("")  # functions beside one's configuration, which a console script does not see
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"data.curation.filters: there is no function {function!r}: {error}") from error


def unique(measures: Sequence[Measure]) -> list[Measure]:
    """Each measure once, in the order of their first appearance."""
    return list(dict.fromkeys(measures))
