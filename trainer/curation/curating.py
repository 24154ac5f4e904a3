"""The stage that decides: measures what has not been measured, applies rules, finds duplicates, and publishes."""

import json
import logging
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer.common.errors import CorpusError
from trainer.common.process import usable_cores
from trainer.common.progress import Bar, Progress
from trainer.common.stopping import check_stop
from trainer.config.jobs import PrepareJob
from trainer.corpus.carrying import carried, carrier_of
from trainer.corpus.decisions import KIND, PIECES, decisions_recipe
from trainer.corpus.shard_workers import Workers
from trainer.corpus.sources import forgetting_changed, reading_options
from trainer.curation.contamination import describe, find_overlap
from trainer.curation.duplicates import Clusters, are_paired, pair, read_pairs
from trainer.curation.keys import Digest, Signature
from trainer.curation.measures import Measure
from trainer.curation.measuring import divide, measure
from trainer.curation.numbering import Numbering, number
from trainer.curation.overlaps import Overlap
from trainer.curation.plan import CONTAMINATED, EXACT, NEAR, Plan, functions_of, make_plan, measures_of, reasons_of
from trainer.curation.rules import columns_of, of_corpus
from trainer.curation.slices import forget_order, groups, put_in_order, slices, start_pass
from trainer.curation.text_measures import Size
from trainer.engines.carriers import Carrier
from trainer.records.holds import hold_reused
from trainer.store.manifest import ArtifactRef, Manifest, find_damage, publish_folder, recall_manifest
from trainer.store.storage import Store

log = logging.getLogger(__name__)


def curate(job: PrepareJob, progress: Progress) -> ArtifactRef:
    """Publish what is decided of each document, or find it published.

    Raises `CorpusError` for raw text, evaluation sets or functions that cannot be used, and if no document stays.
    """
    store, data = Store(job.store), job.data
    with progress.bar("look at raw files", None, "B") as bar:
        plan = make_plan(store, data, bar.advance)
    if (manifest := find_decisions(store, plan.key)) is not None:
        return ArtifactRef(key=plan.key, fingerprint=plan.name, size=manifest.size(), reused=True)
    store.sweep()
    with forgetting_changed(store), Workers(data.workers or usable_cores()) as workers, carrier_of(job, workers) as carrier:
        decided = Deciding(store, job, plan, carrier, progress)
        decided.measure()
        decided.filter()
        decided.drop_duplicates()
        manifest = decided.publish()
    return ArtifactRef(key=plan.key, fingerprint=plan.name, size=manifest.size())


def find_decisions(store: Store, key: str) -> Manifest | None:
    """The manifest of decisions that are published and intact; a damaged one counts as none."""
    manifest = recall_manifest(store, key, KIND)
    if manifest is None:
        return None
    for file, problem in (damage := find_damage(store, key, manifest)).items():
        log.warning("%s/%s %s: deciding anew", store.path(key), file, problem)
    return None if damage or not hold_reused(store, key, manifest.created) else manifest


class Deciding:
    """Decisions in the making: a number for each document, 0 as long as it stays, else that of its reason, from 1."""

    def __init__(self, store: Store, job: PrepareJob, plan: Plan, carrier: Carrier, progress: Progress) -> None:
        assert job.data.curation is not None
        self.store, self.job, self.plan, self.carrier, self.progress = store, job, plan, carrier, progress
        self.options = job.data.curation
        self.names = reasons_of(self.options, plan.tests)
        wanted, transform = self.options.decontaminate, self.options.transform
        self.overlap: Overlap | None = find_overlap(store, wanted, transform, plan.evaluation) if wanted else None
        self.tests = {corpus.name: of_corpus(plan.tests, corpus.name) for corpus, _ in plan.corpora}
        self.measures = {name: measures_of(self.options, tests, self.overlap) for name, tests in self.tests.items()}
        self.size: Measure = Size()

    def measure(self) -> None:
        """Have every document measured, and number them."""
        units = [
            divide(corpus, pieces, self.options.transform, columns_of(self.tests[corpus.name]))
            for corpus, pieces in self.plan.corpora
        ]
        flat = sorted((unit for each in units for unit in each), key=lambda unit: unit.raw_bytes, reverse=True)
        with self.progress.bar("measure documents", self.plan.raw_bytes, "B") as bar:
            self._carry(measure, ((self.job.store, unit, self.measures[unit.corpus.name]) for unit in flat), bar)
        texts = [(corpus.name, pieces, own) for (corpus, pieces), own in zip(self.plan.corpora, units, strict=True)]
        self.numbering: Numbering = number(self.store, texts, self.size)
        self.reasons = np.zeros(self.numbering.total, np.uint8)
        self.firsts: NDArray[Any] | None = None

    def filter(self) -> None:
        """Put each document to the tests, in their order, and then to that of the evaluation sets."""
        for each in self.numbering.units:
            check_stop()
            broken = np.zeros(int(each.counts.sum()), np.uint8)
            for by, tests in groupby(self.tests[each.unit.corpus.name], key=lambda test: test.measure):
                bounds = list(tests)
                for test, values in zip(bounds, each.unit.read(self.store, by, *(t.bound.field for t in bounds)), strict=True):
                    broken[(broken == 0) & test.breaks(values)] = self.plan.tests.index(test) + 1
            if self.overlap is not None:
                (shared,) = each.unit.read(self.store, self.overlap, "ngrams")
                broken[(broken == 0) & (shared > 0)] = self._number(CONTAMINATED)
            self.reasons[each.documents] = broken

    def drop_duplicates(self) -> None:
        """Of documents that are the same, and then of those that resemble each other, leave the first."""
        clusters = Clusters(self.numbering.total)
        passes: list[tuple[str, Measure, int]] = []
        if self.options.exact is not None:
            passes.append((EXACT, Digest.of(self.options.exact), 1))
        if self.options.near is not None:
            passes.append((NEAR, Signature.of(self.options.near), self.options.near.bands))
        for reason, by, keys in passes:
            alive = self.reasons == 0
            self._link(clusters, by, keys, alive, reason)
            self.firsts = clusters.firsts()
            self.reasons[alive & (self.firsts != np.arange(len(alive), dtype=self.firsts.dtype))] = self._number(reason)

    def _link(self, clusters: Clusters, by: Measure, keys: int, alive: NDArray[np.bool_], reason: str) -> None:
        """Link the documents that share one of a measure's `keys` a document."""
        url, started = self.job.store, start_pass(self.store, self.numbering.units, by, alive)
        together, wanted = groups(self.numbering.units, keys), slices(keys * self.numbering.total)
        missing = [each for each in wanted if not are_paired(self.store, started, each)]
        if missing:
            with self.progress.bar(f"put keys of {reason}s in order", len(together), "parts") as bar:
                self._carry(put_in_order, ((url, started, group, len(wanted)) for group in together), bar)
            with self.progress.bar(f"find {reason}s", len(missing), "slices") as bar:
                self._carry(pair, ((url, started, together, each) for each in missing), bar)
        for each in wanted:
            clusters.link(read_pairs(self.store, started, each))
        forget_order(self.store, started, together)

    def publish(self) -> Manifest:
        """Write what is decided. Raises `CorpusError` if nothing stays of a corpus."""
        table = self.count()
        for corpus, _ in self.plan.corpora:
            self._require_some(corpus.name, table[corpus.name])
        with self.store.staging(key=self.plan.key) as folder:
            for corpus, _ in self.plan.corpora:
                np.savez(folder / f"{corpus.name}.npz", allow_pickle=False, **self._of_corpus(corpus.name))
            pieces = {corpus.name: [vars(piece) for piece in pieces] for corpus, pieces in self.plan.corpora}
            Path(folder, PIECES).write_text(json.dumps(pieces), encoding="utf-8")
            return publish_folder(self.store, folder, self.plan.key, KIND, self.plan.name, self._details(table))

    def count(self) -> dict[str, list[dict[str, Any]]]:
        """By corpus, how many documents and bytes stay, and go for each reason."""
        counts = {corpus.name: np.zeros((2, len(self.names) + 1), np.int64) for corpus, _ in self.plan.corpora}
        for each in self.numbering.units:
            (sizes,) = each.unit.read(self.store, self.size, "bytes")
            reasons = self.reasons[each.documents]
            counts[each.unit.corpus.name] += [
                np.bincount(reasons, minlength=len(self.names) + 1),
                np.bincount(reasons, sizes, minlength=len(self.names) + 1).astype(np.int64),
            ]
        return {
            corpus: [
                {"reason": reason, "documents": int(documents), "bytes": int(size)}
                for reason, documents, size in zip(["kept", *self.names], *found, strict=True)
                if documents or reason == "kept"
            ]
            for corpus, found in counts.items()
        }

    def _details(self, table: dict[str, Any]) -> dict[str, Any]:
        kept_out = None
        if (wanted := self.options.decontaminate) is not None and self.overlap is not None:
            kept_out = {
                "ngram": wanted.ngram, "least_words": wanted.least_words, "key": self.overlap.key,
                "files": describe(self.plan.evaluation),
            }  # fmt: skip
        return {
            "recipe": decisions_recipe(self.job.data),
            "curation": self.options.model_dump(mode="json"),
            "reading": {corpus.name: reading_options(corpus) for corpus, _ in self.plan.corpora},
            "reasons": self.names,
            "corpora": [corpus.model_dump(mode="json") for corpus, _ in self.plan.corpora],
            "first_documents": self.numbering.firsts,
            "documents": self.numbering.total,
            "table": table,
            "kept_out": kept_out,
            "functions": functions_of(self.plan.tests),
            "piece_bytes": self.job.data.shards.piece_bytes,
            "measures": sorted(
                {each.unit.folder_for(by) for each in self.numbering.units for by in self.measures[each.unit.corpus.name]}
            ),
        }

    def _of_corpus(self, name: str) -> dict[str, NDArray[Any]]:
        own = self._documents(name)
        firsts = self.firsts[own] if self.firsts is not None else np.arange(own.start, own.stop)
        reasons = self.reasons[own]
        duplicates = np.flatnonzero(np.isin(reasons, [self._number(name) for name in (EXACT, NEAR) if name in self.names]))
        return {
            "counts": self.numbering.counts[name], "reasons": reasons,
            "duplicates": duplicates, "originals": firsts[duplicates].astype(np.int64),
        }  # fmt: skip

    def _require_some(self, corpus: str, table: list[dict[str, Any]]) -> None:
        if table[0]["documents"]:
            return
        if not any(line["documents"] for line in table):
            raise CorpusError(f"corpus {corpus!r} has no document: its files are empty, or hold none that can be read")
        largest = sorted(table[1:], key=lambda line: -line["documents"])[:3]
        told = "; ".join(f"{line['documents']} for {line['reason']!r}" for line in largest)
        raise CorpusError(
            f"corpus {corpus!r}: data.curation lets none of its {sum(line['documents'] for line in table)} documents through: "
            f"{told}; loosen what drops them, or leave it out"
        )

    def _documents(self, corpus: str) -> slice:
        first = self.numbering.firsts[corpus]
        return slice(first, first + int(self.numbering.counts[corpus].sum()))

    def _number(self, reason: str) -> int:
        return self.names.index(reason) + 1

    def _carry(self, work: Callable[..., Any], calls: Iterable[Sequence[Any]], bar: Bar) -> None:
        for _ in carried(self.carrier, bar, work, calls):
            pass
