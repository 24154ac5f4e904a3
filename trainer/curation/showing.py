"""Decisions on single documents, with their evidence: texts are read and measured again."""

import logging
import os
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from pydantic import ValidationError

from trainer.common.display import suggest_nearest
from trainer.common.errors import ArtifactError, ChangedFile, ConfigError, StorageError, in_one_line
from trainer.config.corpora import CorpusConfig
from trainer.config.curation import CurationConfig
from trainer.curation.characters import Hashes
from trainer.curation.contamination import Overlap, Shared, example_of, examples_key, find_words, overlaps, read_hashes
from trainer.curation.deciding import CONTAMINATED, EXACT, NEAR
from trainer.curation.descriptions import decision_warnings
from trainer.curation.measures import Batch, Function, Measure, all_tests, columns_of
from trainer.curation.units import Arrays, read_all
from trainer.data.decisions import KIND, CorpusDecisions, open_decisions, read_curated, read_decisions
from trainer.data.readers import ignore
from trainer.store.manifest import MANIFEST, Manifest, read_manifest
from trainer.store.storage import Store

log = logging.getLogger(__name__)

KEPT = "kept"
BINS = (0.0, 0.7, 0.8, 0.85, 0.9, 0.95, 0.99, 1.0)
"""Bounds of similarities; the last bin includes its upper bound."""

LARGE_CLUSTER, LEAST_IN_CLUSTER = 0.01, 10
"""A warning is due if one document has at least this share and this number of a corpus's documents as duplicates."""


class Place(NamedTuple):
    """A document: its corpus, its file, and its number in the file, from 1."""

    corpus: str
    path: str
    number: int

    def __str__(self) -> str:
        return f"{self.path}#{self.number}"


class Shown(NamedTuple):
    """A document, its decision with the reason, and its text; for a duplicate also the text of its original."""

    place: Place
    reason: str
    why: str
    text: str
    original: str | None = None


class SharedWithExamples:
    """The words that documents share with evaluation sets; `kept_out` is the entry in the decisions' manifest."""

    def __init__(self, store: Store, kept_out: Mapping[str, Any]) -> None:
        self.overlap, self.files = Overlap(store.url, kept_out["key"]), kept_out["files"]

    def find(self, text: bytes) -> Shared | None:
        """The first words of a text that an evaluation set has too. Raises `StorageError` if its hashes are gone."""
        return find_words(text, overlaps(self.overlap))

    def describe(self, text: bytes) -> str | None:
        """The shared words and the first example that has them, as text; None if there are none."""
        found = self.find(text)
        return found and f"{found.words!r} with {self._origin(found)}"

    def _origin(self, found: Shared) -> str:
        """The example as `headrace curation show` prints it: its file, its record's number from 1, its field."""
        try:
            hashes, examples = _origins(self.overlap)
        except StorageError:  # unused measures may have been garbage-collected
            return "an evaluation set"
        at, record = example_of(examples[str(found.length)], hashes[found.length], found.hashed)
        sha256, field = str(examples["sha256"][at]), str(examples["field"][at])
        for file in self.files:
            if (file["sha256"], file["field"]) == (sha256, field):
                return f"{file['path']}#{record + 1} ({field})"
        raise ArtifactError(
            f"the manifest of the decisions has no evaluation file of SHA-256 {sha256}: it is damaged; "
            "delete the decisions to curate the text again"
        )


@cache
def _origins(of: Overlap) -> tuple[dict[int, Hashes], Arrays]:
    """The n-grams' hashes, and the arrays that identify their examples. Raises `StorageError` if they are gone."""
    store = Store(of.url)
    return read_hashes(store, of.key), read_all(store, examples_key(of.key))


class StoredDecisions:
    """The decisions stored under a key. Raises `ArtifactError` if there are none."""

    def __init__(self, store: Store, key: str | None) -> None:
        self.store, self.key = store, key or newest(store)
        self.manifest: Manifest = read_decisions(store, self.key)
        details = self.manifest.details
        self.reasons: list[str] = [KEPT, *details["reasons"]]
        try:
            self.options = CurationConfig.model_validate(details["curation"])
            self.corpora = [CorpusConfig.model_validate(corpus) for corpus in details["corpora"]]
        except ValidationError as error:
            place = f"{store.path(self.key)}/{MANIFEST}"
            raise ArtifactError(
                f"{place} is damaged or of another version of headrace: {in_one_line(error)}"
            ) from error
        self.tests = {test.reason: test for test in all_tests(self.options.filters)}
        self._opened: dict[str, CorpusDecisions] = {}

    def examples(self, reason: str, corpus: str | None, count: int) -> Iterator[Shown]:
        """Documents dropped for a reason, spread over a corpus or over each. Raises `ConfigError` for an unknown
        reason.
        """
        if reason not in self.reasons:
            raise ConfigError(f"{self.key} has no reason {reason!r}; {suggest_nearest(reason, self.reasons)}")
        for each in self.named(corpus):
            found = np.flatnonzero(self.of(each.name).reasons == self.reasons.index(reason))
            for number in found[:: max(1, len(found) // count)][:count]:
                yield self.show(each, int(number))

    def named(self, corpus: str | None) -> list[CorpusConfig]:
        """The corpus of this name, or all. Raises `ConfigError` if there is none."""
        found = [each for each in self.corpora if corpus in (None, each.name)]
        if not found:
            raise ConfigError(
                f"{self.key} has no corpus {corpus!r}; it has {', '.join(each.name for each in self.corpora)}"
            )
        return found

    def document(self, path: str, number: int, name: str | None = None) -> Iterator[Shown]:
        """The decision on a file's document, in each corpus that has the file, or in the corpus of that name.

        Raises `ConfigError` if there is no such corpus, file or document.
        """
        spelt = {path} if "://" in path else {path, os.path.abspath(path)}
        known = False
        for corpus in self.named(name):
            own = self.of(corpus.name)
            named = [piece.path for piece in own.pieces if spelt & {piece.path, piece.key}]
            if len(set(named)) > 1:
                raise ConfigError(
                    f"{path!r} matches several files: {', '.join(sorted(set(named)))}; specify one of these"
                )
            places = [place for place, piece in enumerate(own.pieces) if piece.path in named]
            if places:
                first, end = own.starts[places[0]], own.starts[places[-1] + 1]
                if not 1 <= number <= end - first:
                    raise ConfigError(f"{path} has {end - first} documents, counted from 1; there is no {number}")
                known = True
                yield self.show(corpus, int(first) + number - 1)
        if not known:
            raise ConfigError(f"{self.key} has no file {path!r}; write it as the configuration's paths find it")

    def of(self, corpus: str) -> CorpusDecisions:
        if corpus not in self._opened:
            self._opened[corpus] = open_decisions(self.store, self.key, corpus)
        return self._opened[corpus]

    def show(self, corpus: CorpusConfig, number: int) -> Shown:
        """The decision on a corpus's document, counted from 0."""
        own = self.of(corpus.name)
        batch = self._read(corpus, number)
        reason = self.reasons[own.reasons[number]]
        place, why, (text,) = self._place(corpus, number), self._why(corpus, number, reason, batch), batch.texts.strings
        if (at := own.duplicate(number)) is None:
            return Shown(place, reason, why, text)
        (original,) = self._read(*self._find(int(own.originals[at]))).texts.strings
        return Shown(place, reason, why, text, original)

    def _why(self, corpus: CorpusConfig, number: int, reason: str, batch: Batch) -> str:
        own = self.of(corpus.name)
        if (test := self.tests.get(reason)) is not None:
            if isinstance(test.measure, Function):  # the store names it, and others may write to the store
                return f"its value was not {test.describe()}; functions that a store names are not called to show it"
            (value,) = test.measure(batch)[test.bound.field]
            return f"{self._by_others(test.measure)}{test.explain(value)}"
        if reason == CONTAMINATED:
            return self._why_contaminated(corpus, number, batch.documents[0].text)
        if (at := own.duplicate(number)) is not None:
            return self._why_duplicate(own, at, reason)
        return "no rule drops it"

    def _by_others(self, measure: Measure) -> str:
        """A prefix for a value whose measure has changed since the decision."""
        known = any(folder.endswith(f"/{measure.folder}") for folder in self.manifest.details["measures"])
        return "" if known else "the measure has changed since this was decided; today: "

    def _why_contaminated(self, corpus: CorpusConfig, number: int, text: bytes) -> str:
        sharing = SharedWithExamples(self.store, self.manifest.details["kept_out"])
        if others := self._by_others(sharing.overlap):
            return f"{others}it shares {sharing.describe(text) or 'nothing'}"
        if shared := sharing.describe(text):
            return f"it shares {shared}"
        own, path = self.of(corpus.name), self._place(corpus, number).path
        for other, where in ((number - 1, "previous"), (number + 1, "next")):
            if 0 <= other < len(own.reasons) and self._place(corpus, other).path == path:
                beside = self._read(corpus, other).documents[0].text
                shared = sharing.describe(beside + text if other < number else text + beside)
                if shared and sharing.find(beside) is None:
                    return f"with the {where} part of its file it shares {shared}"
        return "it shares words with an evaluation set that begin in one part of its file and end in the next"

    def _why_duplicate(self, own: CorpusDecisions, at: int, reason: str) -> str:
        """Why the document at this index among the duplicates of a corpus is dropped."""
        corpus, number = self._find(int(own.originals[at]))
        place, its_reason = self._place(corpus, number), self.reasons[self.of(corpus.name).reasons[number]]
        if reason == EXACT:
            normalised = self.options.exact.normalise if self.options.exact else []
            share = f"they are equal except for {', '.join(normalised)}" if normalised else "they are equal"
        else:
            share = (
                f"the similarity of their n-grams is {own.similarity[at]:.2f}, and that one contains "
                f"{own.contained[at]:.0%} of its n-grams"
            )
        if its_reason == KEPT:
            return f"{place} is kept instead; {share}"
        why = self._why(corpus, number, its_reason, self._read(corpus, number))
        return f"it is a copy of {place}, which is dropped as {its_reason}: {why}"

    def clusters(self, corpus: CorpusConfig, most: int) -> list[tuple[Place, int]]:
        """The documents with the most duplicates in a corpus, and how many; copies of a near duplicate count too."""
        originals = self.of(corpus.name).originals
        roots = originals.copy()
        for other in map(self.of, (each.name for each in self.corpora)):  # an original may itself be a near duplicate
            if len(other.duplicates):
                at = np.minimum(np.searchsorted(other.duplicates, originals - other.first), len(other.duplicates) - 1)
                again = other.duplicates[at] == originals - other.first
                roots[again] = other.originals[at[again]]
        found, counts = np.unique(roots, return_counts=True)
        largest = np.argsort(-counts, kind="stable")[:most]
        return [(self._place(*self._find(int(found[each]))), int(counts[each])) for each in largest]

    def similarities(self, corpus: CorpusConfig) -> list[int]:
        """The number of a corpus's near duplicates in each of the `BINS`."""
        own = self.of(corpus.name)
        if NEAR not in self.reasons:
            return [0] * (len(BINS) - 1)
        near = own.reasons[own.duplicates] == self.reasons.index(NEAR)
        return [int(count) for count in np.histogram(own.similarity[near], np.array(BINS, np.float32))[0]]

    def warnings(self) -> Iterator[str]:
        """Possible problems with the decisions, one sentence each."""
        yield from decision_warnings(self.manifest.details)
        for corpus in self.corpora:
            documents = int(self.of(corpus.name).counts.sum())
            for original, count in self.clusters(corpus, 1):
                if count >= max(LEAST_IN_CLUSTER, LARGE_CLUSTER * documents):
                    yield (
                        f"corpus {corpus.name!r}: {count:,} of its documents ({count / documents:.1%}) are duplicates "
                        f"of one, {original}"
                    )

    def _find(self, document: int) -> tuple[CorpusConfig, int]:
        """The corpus of a document that is numbered over all corpora, and its number in the corpus."""
        firsts = self.manifest.details["first_documents"]
        name = max((first, position) for position, first in enumerate(firsts.values()) if first <= document)[1]
        corpus = next(corpus for corpus in self.corpora if corpus.name == list(firsts)[name])
        return corpus, document - firsts[corpus.name]

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
        try:  # reads to the end of the piece, where its digest is compared
            return Batch(
                [document for place, document in enumerate(documents) if place == number - int(own.starts[at])]
            )
        except ChangedFile as error:
            raise ArtifactError(
                f"{own.pieces[at].path} has changed since its documents were decided; run the job again to curate the "
                "text again"
            ) from error


def newest(store: Store) -> str:
    """The key of the newest decisions of a store; unfinished and damaged ones are skipped.

    Raises `ArtifactError` if there are no intact decisions.
    """
    found: list[tuple[str, str]] = []
    unusable: ArtifactError | None = None
    for key in (f"{KIND}/{name}" for name in store.names(KIND)):
        try:
            manifest = read_manifest(store, key, KIND)
        except ArtifactError as error:
            log.warning("%s", error)
            unusable = error
            continue
        if manifest is not None:
            found.append((manifest.created, key))
        else:
            unusable = unusable or ArtifactError(
                f"{store.path(key)} is unfinished, or its manifest is gone; run the job again to curate the text"
            )
    if not found:
        raise unusable or ArtifactError(f"{store.url} has no decisions; run a job with data.curation")
    return max(found)[1]
