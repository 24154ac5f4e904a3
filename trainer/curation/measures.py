"""Measures: what is found out about each document once, and compared with thresholds as often as these change.

A measure takes a batch of texts and gives arrays with a row for each. What it gives is kept under its name and options:
a new one is one class in text_measures.py, and one line where its rule asks for it.
"""

import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from trainer.common.errors import CorpusError
from trainer.curation.characters import UNICODE
from trainer.curation.matching import matching
from trainer.curation.texts import Texts
from trainer.data.readers import Document
from trainer.store.manifest import fingerprint

Rows = dict[str, NDArray[Any]]
"""Arrays by name, each with one row a document."""


class Batch:
    """Some documents, and their texts as measures look at them."""

    def __init__(self, documents: Sequence[Document]) -> None:
        self.documents = documents
        self.texts = Texts([document.text for document in documents])

    def composed(self, find: Callable[[Texts], NDArray[Any]]) -> NDArray[Any]:
        """What is found in each text, with its characters written in one way (NFC), where it matters what texts have in
        common.

        Most are written so: of the others alone words are looked for twice.
        """
        found = find(self.texts)
        others, texts = self._others
        if len(others):
            found[others] = find(texts)
        return found

    @cached_property
    def matching(self) -> Texts:
        """The texts as they are compared with evaluation sets."""
        return matching(self.texts)

    @cached_property
    def _others(self) -> tuple[NDArray[np.intp], Texts]:
        """Which texts are not in that form, and they in it."""
        others = [
            number for number, text in enumerate(self.texts.strings) if not unicodedata.is_normalized("NFC", text)
        ]
        return np.array(others, np.intp), composed(Texts([self.texts.documents[number] for number in others]))


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


class DocumentError(CorpusError):
    """Something is wrong with a document of a batch, of which this is the number."""

    def __init__(self, number: int, message: str) -> None:
        super().__init__(message)
        self.number = number

    def __reduce__(self) -> Any:
        return DocumentError, (self.number, str(self))


def unique(measures: Sequence[Measure]) -> list[Measure]:
    """Each measure once, in the order of their first appearance."""
    return list(dict.fromkeys(measures))
