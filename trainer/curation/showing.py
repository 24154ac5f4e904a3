"""What was decided of single documents, with what it was decided by: read again, and measured again."""

import logging
import os
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from pydantic import ValidationError

from trainer.common.errors import ArtifactError, ChangedFile, ConfigError, in_one_line
from trainer.config.corpora import CorpusConfig
from trainer.config.curation import CurationConfig
from trainer.corpus.curated import read_curated
from trainer.corpus.decisions import KIND, CorpusDecisions, open_decisions, read_decisions
from trainer.corpus.readers import ignore
from trainer.curation.measures import Batch
from trainer.curation.plan import CONTAMINATED
from trainer.curation.rules import all_tests, columns_of
from trainer.curation.sharing import Sharing
from trainer.curation.texts import Texts, shingles
from trainer.store.manifest import MANIFEST, Manifest, read_manifest
from trainer.store.storage import Store

log = logging.getLogger(__name__)

KEPT = "kept"


class Place(NamedTuple):
    """A document by its corpus, its file, and its number there, from 1."""

    corpus: str
    path: str
    number: int

    def __str__(self) -> str:
        return f"{self.path}#{self.number}"


class Shown(NamedTuple):
    """A document, what was decided of it, why, and its text."""

    place: Place
    reason: str
    why: str
    text: str


class Decided:
    """The decisions of a store by one key. Raises `ArtifactError` if there are none."""

    def __init__(self, store: Store, key: str | None) -> None:
        self.store, self.key = store, key or newest(store)
        self.manifest: Manifest = read_decisions(store, self.key)
        details = self.manifest.details
        self.reasons: list[str] = [KEPT, *details["reasons"]]
        try:
            self.options = CurationConfig(**details["curation"])
            self.corpora = [CorpusConfig(**corpus) for corpus in details["corpora"]]
        except ValidationError as error:
            place = f"{store.path(self.key)}/{MANIFEST}"
            raise ArtifactError(f"{place} is damaged or of another version of headrace: {in_one_line(error)}") from error
        self.tests = {test.reason: test for test in all_tests(self.options.filters)}
        self._opened: dict[str, CorpusDecisions] = {}

    def examples(self, reason: str, corpus: str | None, count: int) -> Iterator[Shown]:
        """Some documents that go for a reason, from all over a corpus or each. Raises `ConfigError` for an unknown reason."""
        if reason not in self.reasons:
            raise ConfigError(f"{self.key} knows no reason {reason!r}; it has {', '.join(map(repr, self.reasons))}")
        for each in self.named(corpus):
            found = np.flatnonzero(self.of(each.name).reasons == self.reasons.index(reason))
            for number in found[:: max(1, len(found) // count)][:count]:
                yield self.show(each, int(number))

    def named(self, corpus: str | None) -> list[CorpusConfig]:
        """The corpus of this name, or all. Raises `ConfigError` if there is none."""
        found = [each for each in self.corpora if corpus in (None, each.name)]
        if not found:
            raise ConfigError(f"{self.key} knows no corpus {corpus!r}; it has {', '.join(each.name for each in self.corpora)}")
        return found

    def document(self, path: str, number: int, name: str | None = None) -> Iterator[Shown]:
        """What was decided of a file's document, in each corpus that has the file, or in the one of that name.

        Raises `ConfigError` if there is no such corpus, file or document.
        """
        spelt = {path} if "://" in path else {path, os.path.abspath(path)}
        known = False
        for corpus in self.named(name):
            own = self.of(corpus.name)
            named = [piece.path for piece in own.pieces if spelt & {piece.path, piece.key}]
            if len(set(named)) > 1:
                raise ConfigError(f"{path!r} is the name of several files: {', '.join(sorted(set(named)))}; name one of these")
            places = [place for place, piece in enumerate(own.pieces) if piece.path in named]
            if places:
                first, end = own.starts[places[0]], own.starts[places[-1] + 1]
                if not 1 <= number <= end - first:
                    raise ConfigError(f"{path} has {end - first} documents, counted from 1; there is no {number}")
                known = True
                yield self.show(corpus, int(first) + number - 1)
        if not known:
            raise ConfigError(f"{self.key} decides about no file {path!r}; name it as the configuration's paths find it")

    def of(self, corpus: str) -> CorpusDecisions:
        if corpus not in self._opened:
            self._opened[corpus] = open_decisions(self.store, self.key, corpus)
        return self._opened[corpus]

    def show(self, corpus: CorpusConfig, number: int) -> Shown:
        """What was decided of a corpus's document, counted from 0."""
        own = self.of(corpus.name)
        batch = self._read(corpus, number)
        reason = self.reasons[own.reasons[number]]
        return Shown(self._place(corpus, number), reason, self._why(corpus, number, reason, batch), batch.texts.strings[0])

    def _why(self, corpus: CorpusConfig, number: int, reason: str, batch: Batch) -> str:
        own = self.of(corpus.name)
        if (test := self.tests.get(reason)) is not None:
            (value,) = test.measure(batch)[test.bound.field]
            return test.tell(value)
        if reason == CONTAMINATED:
            return self._why_contaminated(corpus, number, batch.documents[0].text)
        if number in (at := own.duplicates):
            return self._why_duplicate(int(own.originals[np.searchsorted(at, number)]), batch.texts)
        return "no rule speaks against it"

    def _why_contaminated(self, corpus: CorpusConfig, number: int, text: bytes) -> str:
        sharing = Sharing(self.store, self.manifest.details["kept_out"])
        if told := sharing.tell(text):
            return f"it shares {told}"
        own, path = self.of(corpus.name), self._place(corpus, number).path
        for other, where in ((number - 1, "previous"), (number + 1, "next")):
            if 0 <= other < len(own.reasons) and self._place(corpus, other).path == path:
                beside = self._read(corpus, other).documents[0].text
                told = sharing.tell(beside + text if other < number else text + beside)
                if told and sharing.find(beside) is None:
                    return f"with the {where} part of its file it shares {told}"
        return "it shares words with an evaluation set that begin in one part of its file and end in the next"

    def _why_duplicate(self, original: int, texts: Texts) -> str:
        """Why a document goes of which this is the original, counted over all corpora."""
        corpus = self._corpus_of(original)
        number = original - self.of(corpus.name).first
        place, other = self._place(corpus, number), self._read(corpus, number)
        share = f"they share {self._similarity(texts, other.texts):.0%} of their n-grams"
        reason = self.reasons[self.of(corpus.name).reasons[number]]
        if reason == KEPT:
            return f"{place} stays in its place; {share}"
        return f"it is a copy of {place}, {share}; that one goes as {reason}: {self._why(corpus, number, reason, other)}"

    def _similarity(self, one: Texts, other: Texts) -> float:
        ngram = self.options.near.ngram if self.options.near else 5
        first, second = (set(shingles(texts, ngram)[0].tolist()) for texts in (one, other))
        return len(first & second) / len(first | second) if first | second else 1.0

    def _corpus_of(self, number: int) -> CorpusConfig:
        firsts = self.manifest.details["first_documents"]
        name = max((first, position) for position, first in enumerate(firsts.values()) if first <= number)[1]
        return next(corpus for corpus in self.corpora if corpus.name == list(firsts)[name])

    def _place(self, corpus: CorpusConfig, number: int) -> Place:
        own = self.of(corpus.name)
        at = own.piece_of(number)
        piece = own.pieces[at]
        first = own.starts[at - piece.index]
        return Place(corpus.name, piece.path, number - int(first) + 1)

    def _read(self, corpus: CorpusConfig, number: int) -> Batch:
        own = self.of(corpus.name)
        at = own.piece_of(number)
        documents = read_curated(
            own.pieces[at], corpus, ignore, self.options.transform, columns=columns_of(self.tests.values())
        )
        try:  # to the end of the piece, where it is compared with its digest
            return Batch([document for place, document in enumerate(documents) if place == number - int(own.starts[at])])
        except ChangedFile as error:
            raise ArtifactError(
                f"{own.pieces[at].path} is not as it was when it was decided about; run the job again, which decides anew"
            ) from error


def newest(store: Store) -> str:
    """The key of the newest decisions of a store; what is not finished or damaged is passed over.

    Raises `ArtifactError` if it has none, or none that is intact.
    """
    found: list[tuple[str, str]] = []
    damaged: ArtifactError | None = None
    for key in (f"{KIND}/{name}" for name in store.names(KIND)):
        try:
            manifest = read_manifest(store, key, KIND)
        except ArtifactError as error:
            log.warning("%s", error)
            damaged = error
        else:
            found += [(manifest.created, key)] if manifest is not None else []
    if not found:
        raise damaged or ArtifactError(f"{store.url} holds no decisions; a job with data.curation makes them")
    return max(found)[1]
