"""The curation step: measures documents, applies rules, finds duplicates, and publishes the decisions."""

import json
import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer.common.display import size
from trainer.common.errors import CorpusError
from trainer.common.process import granted_cores
from trainer.common.progress import Progress
from trainer.config.jobs import PrepareJob
from trainer.curation.contamination import (
    describe,
    examples_key,
    name_frequent,
    read_examples_of,
    read_files,
    read_hashes,
)
from trainer.curation.deciding import EXACT, NEAR, CurationRun, count_reasons, make_plan
from trainer.curation.shared_keys import Duplicates
from trainer.curation.showing import StoredDecisions
from trainer.data.decisions import KIND, PIECES, read_pieces
from trainer.data.pieces import Piece
from trainer.data.shard_building import Workers
from trainer.data.sources import PIECE_BYTES, forgetting_changed
from trainer.data.tokenization import executor_for
from trainer.records.basis import by_file
from trainer.records.steps import CONTENTS, Explains, Parts, Sources, Step, publish
from trainer.store.manifest import Manifest
from trainer.store.storage import Store

log = logging.getLogger(__name__)


NO_DUPLICATES = Duplicates(*np.empty((2, 0), np.int64), *np.empty((2, 0), np.float32))


def publish_decided(step: Step, decided: CurationRun) -> Manifest:
    """Write the decisions. Raises `CorpusError` if no document of a corpus is kept."""
    table = count(decided)
    for corpus, _ in decided.plan.corpora:
        _require_some(corpus.name, table[corpus.name])
    with decided.store.staging(key=step.key) as folder:
        for corpus, _ in decided.plan.corpora:
            np.savez(folder / f"{corpus.name}.npz", allow_pickle=False, **_of_corpus(decided, corpus.name))
        pieces = {corpus.name: [vars(piece) for piece in pieces] for corpus, pieces in decided.plan.corpora}
        Path(folder, PIECES).write_text(json.dumps(pieces), encoding="utf-8")
        return publish(step, folder, _details(decided, table), notes=frozenset({PIECES}))


def count(decided: CurationRun) -> dict[str, list[dict[str, Any]]]:
    """By corpus, the number and bytes of the documents that are kept, and of those dropped for each reason."""
    counts = {corpus.name: np.zeros((2, len(decided.names) + 1), np.int64) for corpus, _ in decided.plan.corpora}
    for each in decided.numbering.units:
        (sizes,) = each.unit.read(decided.store, decided.size, "bytes")
        counts[each.unit.corpus.name] += count_reasons(decided.reasons[each.documents], sizes, decided.names)
    return {
        corpus: [
            {"reason": reason, "documents": int(documents), "bytes": int(size)}
            for reason, documents, size in zip(["kept", *decided.names], *found, strict=True)
            if documents or reason == "kept"
        ]
        for corpus, found in counts.items()
    }


def _details(decided: CurationRun, table: dict[str, Any]) -> dict[str, Any]:
    return {
        "curation": decided.options.model_dump(mode="json"),
        "reasons": decided.names,
        "corpora": [corpus.model_dump(mode="json") for corpus, _ in decided.plan.corpora],
        "first_documents": decided.numbering.firsts,
        "documents": decided.numbering.total,
        "table": table,
        "compared": {"pairs": compared.pairs, "incomplete": compared.incomplete}
        if (compared := decided.compared)
        else None,
        "kept_out": _kept_out(decided),
        "measures": sorted(
            {
                each.unit.folder_for(by)
                for each in decided.numbering.units
                for by in decided.measures[each.unit.corpus.name]
            }
        ),
    }


def _kept_out(decided: CurationRun) -> dict[str, Any] | None:
    if (wanted := decided.options.decontaminate) is None or decided.overlap is None:
        return None
    key = decided.overlap.key
    hashes, files = read_hashes(decided.store, key), read_files(decided.store, key)
    frequent = name_frequent(
        {corpus: np.concatenate(parts) for corpus, parts in decided.shared.items() if parts},
        {corpus: int(counts.sum()) for corpus, counts in decided.numbering.counts.items()},
        hashes, read_examples_of(decided.store, key, hashes), files, decided.plan.evaluation,
        decided.options.transform,
    )  # fmt: skip
    return {
        "ngram": wanted.ngram, "least_words": wanted.least_words, "key": key, "examples": examples_key(key),
        "files": describe(decided.plan.evaluation),
        "texts": [file._asdict() for file in files],
        "frequent": frequent,
    }  # fmt: skip


def _of_corpus(decided: CurationRun, name: str) -> dict[str, NDArray[Any]]:
    first = decided.numbering.firsts[name]
    own = slice(first, first + int(decided.numbering.counts[name].sum()))
    found = [np.concatenate(arrays) for arrays in zip(NO_DUPLICATES, *decided.duplicates, strict=True)]
    order = np.argsort(found[0])
    order = order[slice(*np.searchsorted(found[0][order], (own.start, own.stop)))]
    duplicates, *rest = (array[order] for array in found)
    return {
        "counts": decided.numbering.counts[name], "reasons": decided.reasons[own], "duplicates": duplicates - own.start,
        **dict(zip(Duplicates._fields[1:], rest, strict=True)),
    }  # fmt: skip


def _require_some(corpus: str, table: list[dict[str, Any]]) -> None:
    """Raise `CorpusError` if rules drop every document of a corpus.

    Duplicates do not count as dropped: their original is kept, perhaps in another corpus.
    """
    left = [line for line in table if line["reason"] in ("kept", EXACT, NEAR)]
    if any(line["documents"] for line in left):
        return
    if not any(line["documents"] for line in table):
        raise CorpusError(f"corpus {corpus!r} has no documents: its files are empty, or hold no readable documents")
    largest = sorted(table[1:], key=lambda line: -line["documents"])[:3]
    reasons = "; ".join(f"{line['documents']} as {line['reason']!r}" for line in largest)
    raise CorpusError(
        f"corpus {corpus!r}: data.curation drops all {sum(line['documents'] for line in table)} documents: {reasons}; "
        "loosen these filters, or remove the corpus"
    )


def curate(store: Store, job: PrepareJob, progress: Progress) -> Step:
    """The step that decides which documents are kept.

    It raises `CorpusError` for unusable raw text, evaluation sets or functions, and if no document is kept.
    """
    with progress.bar("check raw files", None, "B") as bar:
        plan = make_plan(store, job.data, bar.advance)

    def build(step: Step) -> Manifest:
        workers = Workers(job.data.workers or granted_cores())
        with forgetting_changed(store), workers, executor_for(job, workers) as executor:
            decided = CurationRun(store, job, plan, executor, progress)
            decided.measure()
            decided.filter()
            decided.drop_duplicates()
            manifest = publish_decided(step, decided)
            for warning in StoredDecisions(store, step.key).warnings():
                log.warning("%s", warning)
            return manifest

    def recall_sources(key: str, manifest: Manifest) -> Sources:
        kept_out = manifest.details["kept_out"]
        files = kept_out["files"] if kept_out else []
        return _sources(read_pieces(store, key, manifest).values(), files, manifest.recipe)

    return Step(
        store, KIND, KIND, "text", plan.recipe, build, recorded_only=frozenset({PIECE_BYTES}),
        remedy="delete the folder to curate the text again",
        explains=Explains(
            sources=lambda: _sources([pieces for _, pieces in plan.corpora], describe(plan.evaluation), plan.recipe),
            recall_sources=recall_sources,
            parts=lambda: Parts(work=f"about {size(plan.raw_bytes)} of raw text"),
        ),
    )  # fmt: skip


def _sources(corpora: Iterable[Iterable[Piece]], files: list[dict[str, str]], recipe: Mapping[str, Any]) -> Sources:
    """The pieces of raw files, the evaluation files that are kept out, and the sources of the user's functions."""
    return {
        **by_file(vars(piece) for pieces in corpora for piece in pieces),
        **{f"{file['path']}, kept out": file["sha256"] for file in files},
        **{f"source of {name} or one of its imports": sha256 for name, sha256 in recipe[CONTENTS]["functions"].items()},
    }
