"""A corpus to its published shard set, doing only the work that is missing in the store.

Pieces are assigned to shards by a hash of their names, so a changed or added file changes one shard only. Finished
shards of an interrupted or an older set are found by their fingerprint, and their checksums are verified before they
are used. The shards of a published set are read only if the job requires it (`verify`), or if damage was found.
"""

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, wait
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from itertools import islice
from typing import Any

from trainer.common.bad_records import check_budget, describe_bad, first_of
from trainer.common.display import count, plural, size
from trainer.common.errors import CorpusError, StorageError, TokenizerError
from trainer.common.process import granted_cores
from trainer.common.progress import Bar, Progress
from trainer.common.stopping import check_stop
from trainer.config.corpora import DataConfig, ShardConfig
from trainer.config.engines import RayEngine
from trainer.config.jobs import PrepareJob
from trainer.data.decisions import Reader, identities, open_reader, transform_options
from trainer.data.encoders import NFC, settle_engine
from trainer.data.pieces import Piece, assigned
from trainer.data.raw_files import compression_of
from trainer.data.readers import ignore
from trainer.data.shard_building import Recipe, ShardWork, Workers, build, find_shards, finished_shards, load_encoder
from trainer.data.shard_files import clear_mark, is_marked
from trainer.data.shards import FORMAT, KIND, ShardRecord, record_file, shards_manifest, token_dtype
from trainer.data.sources import PIECE_BYTES, files_of, find_pieces, forgetting_changed, look_at_text, reading_options
from trainer.data.tokenizer_training import spread
from trainer.engines.executors import Executor
from trainer.models.tokenizer import (
    TOKENIZER_FILE,
    TokenizerInfo,
    add_digests,
    keeps_text,
    load_tokenizer,
    normalizers_of,
    tokenizer_manifest,
)
from trainer.records.basis import by_file
from trainer.records.plans import PreparedData
from trainer.records.sealed import read_listed
from trainer.records.steps import CONTENTS, Explains, Parts, Sources, Step, describe, nothing
from trainer.store.artifact_files import Depth, find_damage
from trainer.store.checked_files import BLOCK_BYTES
from trainer.store.details import Totals
from trainer.store.manifest import ArtifactRef, Manifest, digest_file, fingerprint, name_of, write_manifest
from trainer.store.storage import Store

log = logging.getLogger(__name__)


LOOK_SECONDS = 0.5
"""Seconds between two checks of progress and for a stop request."""


@contextmanager
def executor_for(job: PrepareJob, workers: Workers, load: Callable[[], object] | None = None) -> Iterator[Executor]:
    """The executor of a job: processes of this machine, or tasks of its cluster, which call `load` beforehand."""
    if isinstance(job.engine, RayEngine):
        from trainer.engines.ray_tasks import ray_tasks

        with ray_tasks(job.engine, Store(job.store), job.data.workers, load) as tasks:
            yield tasks
    else:
        yield workers


def run_units(executor: Executor, bar: Bar, work: Callable[..., Any], calls: Iterable[Sequence[Any]]) -> Iterator[Any]:
    """Yield the results of calls as they finish. Raises the first error, or on a stop request."""
    waiting, before = iter(calls), executor.done
    pending = {executor.submit(work, *arguments) for arguments in islice(waiting, executor.most)}
    while pending:
        check_stop()
        finished, pending = wait(pending, timeout=LOOK_SECONDS, return_when=FIRST_COMPLETED)
        bar.reach(executor.done - before)
        pending |= {executor.submit(work, *arguments) for arguments in islice(waiting, len(finished))}
        for future in finished:
            yield future.result()


SOURCES = "sources.json"
STARTED = "started.json"
"""Exists only while a set is built: its age shows that the set is not abandoned, although its shards may be old."""
SAMPLED_DOCUMENTS = 64
RECORDED_ONLY = frozenset({PIECE_BYTES, "decisions"})
"""Recorded inputs outside the identity: the shards' fingerprints already cover where files are cut and what is kept."""


def tokenize(
    store: Store,
    job: PrepareJob,
    progress: Progress,
    corpus: str,
    tokenizer: ArtifactRef,
    decisions: ArtifactRef | None = None,
    early: bool = False,
) -> Step:
    """The step that tokenizes the kept documents of a corpus; reads raw files that have changed.

    With `early`, which means that the set will be built, workers start early if there is much to read.

    It raises `CorpusError` and `RecordError` for bad input, `ArtifactError` for decisions on other text, `StorageError`
    if the store refuses.
    """
    data, options = job.data, next(each for each in job.data.corpora if each.name == corpus)
    info = load_tokenizer(store, tokenizer.key)
    with ExitStack() as begun:
        workers = begun.enter_context(Workers(data.workers or granted_cores()))

        def start_early(raw_bytes: int) -> None:
            if early and not isinstance(job.engine, RayEngine):
                workers.start_early(raw_bytes, job.store, tokenizer.key, data.tokenizer.engine)

        with progress.bar(f"read {corpus}", None, "B") as bar:
            pieces = find_pieces(store, options, data.shards.piece_bytes, bar.advance, start_early)
        reader = open_reader(store, data, options, pieces, decisions.key if decisions else None)
        work = deal(pieces, reader, data, info)
        recipe = {
            "format": FORMAT,
            f"data.corpora.{corpus}": reading_options(options),
            "data.shards.num_shards": len(work),
            PIECE_BYTES: data.shards.piece_bytes,
            "data.validation_fraction": data.validation_fraction,
            CONTENTS: {"text": fingerprint([shard.fingerprint for shard in work])},
        }
        inputs = {"tokenizer": tokenizer.as_input(), **({"decisions": decisions.as_input()} if decisions else {})}
        key = f"{KIND}/{corpus}-{name_of(recipe, inputs, RECORDED_ONLY)}"
        depth: Depth = "all" if job.verify or is_marked(store, key) else "sizes"

        def build(step: Step) -> Manifest:
            return _build(step, job, reader, tokenizer.key, info, work, workers, depth, progress)

        return Step(
            store, KIND, KIND, corpus, recipe, build, inputs=inputs, recorded_only=RECORDED_ONLY,
            depth=depth, in_place=True,
            accept=lambda manifest: _check_bad_records(corpus, options.max_bad_records, manifest.details),
            passed=partial(clear_mark, store, key) if depth == "all" else nothing,
            explains=Explains(
                sources=lambda: by_file(vars(piece) for piece in pieces),
                recall_sources=partial(_recall_sources, store),
                parts=lambda: count_parts(store, key, corpus, work, depth),
            ),
            release=begun.pop_all().close,
        )  # fmt: skip


def _recall_sources(store: Store, key: str, manifest: Manifest) -> Sources:
    return by_file(read_listed(store, f"{key}/{SOURCES}", manifest.digests().get(SOURCES)) or [])


def count_parts(store: Store, key: str, corpus: str, work: Sequence[ShardWork], depth: Depth) -> Parts:
    """The number of a set's shards that exist, and the amount of text for the others."""
    found = find_shards(store, key, corpus, work, depth)
    begun = store.exists(f"{key}/{STARTED}") or any(folder == key for folder, _ in found.values())
    missing = [shard for shard in work if shard.number not in found]
    amount = f" from {size(sum(shard.raw_bytes for shard in missing))} of raw text" if missing else ""
    return Parts(
        begun,
        f"{count(len(found))} of {plural(len(work), 'shard')} reused, {count(len(missing))} to build{amount}",
    )


def _build(
    step: Step, job: PrepareJob, reader: Reader, tokenizer_key: str, tokenizer: TokenizerInfo,
    work: list[ShardWork],
    workers: Workers, depth: Depth, progress: Progress,
) -> Manifest:  # fmt: skip
    """Build the missing shards, and commit the set."""
    store, data, key, corpus = step.store, job.data, step.key, reader.corpus
    store.write_json(f"{key}/{STARTED}", {})
    # Of a remote store the files would have to be fetched.
    records = finished_shards(store, key, corpus.name, work, "all" if store.local is not None else depth)
    if records:
        log.info("corpus %s: %d of %d shards are reused", corpus.name, len(records), len(work))
    missing = [shard for shard in work if shard.number not in records]
    look_at_text(corpus, files_of([piece for shard in missing for piece in shard.pieces]))
    known_size = not any(compression_of(piece.path) for shard in missing for piece in shard.pieces)
    load = partial(load_encoder, job.store, tokenizer_key, data.tokenizer.engine)
    with forgetting_changed(store), executor_for(job, workers, load) if missing else nullcontext(workers) as executor:
        engine = _checked_engine(store, data.tokenizer.engine, reader, work, tokenizer)
        recipe = Recipe(job.store, key, corpus, tokenizer_key, engine, data.validation_fraction, reader.transform)
        with progress.bar(
            f"tokenize {corpus.name}", sum(s.raw_bytes for s in missing) if known_size else None, "B"
        ) as bar:
            largest = sorted(missing, key=lambda shard: shard.raw_bytes, reverse=True)
            for record in run_units(executor, bar, build, ((recipe, shard) for shard in largest)):
                records[record.number] = record
    return _commit(step, recipe, tokenizer, work, [records[shard.number] for shard in work])


def shard_manifests(store: Store, data: PreparedData) -> list[Manifest]:
    """The manifests of all shard sets. Raises if one is missing, or was built with another tokenizer."""
    sha256 = tokenizer_manifest(store, data.tokenizer.key).digests()[TOKENIZER_FILE]
    manifests = []
    for ref in data.shards:
        manifest = shards_manifest(store, ref.key)
        if manifest.details["tokenizer_sha256"] != sha256:
            raise TokenizerError(
                f"{store.path(ref.key)} was tokenized with {manifest.inputs['tokenizer'].key}, not with "
                f"{data.tokenizer.key}; prepare the data again"
            )
        manifests.append(manifest)
    return manifests


def shard_count(options: ShardConfig, raw_bytes: int) -> int:
    """Number of shards: as configured, else one per `shard_bytes` of raw input."""
    return options.num_shards or max(1, -(-raw_bytes // options.shard_bytes))


def deal(pieces: Sequence[Piece], reader: Reader, data: DataConfig, tokenizer: TokenizerInfo) -> list[ShardWork]:
    """The pieces of each shard, and each shard's fingerprint.

    The fingerprint covers only the decisions on the shard's own pieces, so decisions on others do not change it.
    """
    count = shard_count(data.shards, sum(piece.size for piece in pieces))
    common = [FORMAT, reading_options(reader.corpus), tokenizer.sha256, tokenizer.eos_id, data.validation_fraction]
    if normalizers_of(json.loads(tokenizer.json)) == {NFC}:
        common.append("normalised by tokenizers")  # before, gigatoken did that for some shards, with other ids
    work = []
    for number, group in enumerate(assigned(pieces, count)):
        decided = tuple(map(reader.of_piece, group))
        made_of: list[Any] = [*common, identities(group)]
        if any(decided) or reader.transform is not None:
            bits = [each and [each.documents, each.kept.hex(), each.goes_on] for each in decided]
            made_of += [transform_options(reader.transform), bits]
        work.append(ShardWork(number, fingerprint(made_of), tuple(group), decided))
    return work


def _checked_engine(
    store: Store, wanted: str, reader: Reader, work: Sequence[ShardWork], tokenizer: TokenizerInfo
) -> str:
    """The engine to build with, after comparing the wanted one's ids with the reference on documents from all over the
    corpus.
    """

    def samples() -> Iterator[bytes]:
        for piece in spread([piece for shard in work for piece in shard.pieces]):
            for document in islice(reader.read(piece, ignore), 8):
                yield document.text[:65536].decode(errors="ignore").encode()

    documents = list(islice(samples(), SAMPLED_DOCUMENTS))
    return settle_engine(store, reader.corpus.name, wanted, tokenizer, documents)


def _check_bad_records(corpus: str, most: int, details: dict[str, Any]) -> None:
    check_budget(f"corpus {corpus!r}", most, {**details["totals"], **details})


def _commit(
    step: Step, recipe: Recipe, tokenizer: TokenizerInfo, work: list[ShardWork], records: list[ShardRecord]
) -> Manifest:
    """Verify the whole set and write its manifest."""
    store, corpus = step.store, recipe.corpus
    totals = Totals(**{field: sum(getattr(record, field) for record in records) for field in Totals.model_fields})
    skipped = first_of(record.skipped for record in records)
    details = {
        "corpus": corpus.name,
        "dtype": token_dtype(tokenizer.max_id).str,
        "block_bytes": BLOCK_BYTES,
        "eos_id": tokenizer.eos_id,
        "vocab_size": tokenizer.vocab_size,
        "tokenizer_sha256": tokenizer.sha256,
        "engine": recipe.engine,
        "num_shards": len(records),
        "shard_tokens": [record.tokens for record in records],
        "totals": totals.model_dump(),
        "keeps_text": keeps_text(tokenizer.json),
        "validation_digest": add_digests(record.validation_digest for record in records),
        "validation_fraction": recipe.validation_fraction,
        **({"skipped": skipped} if skipped else {}),
    }
    _check_bad_records(corpus.name, corpus.max_bad_records, details)
    if not totals.tokens:
        raise CorpusError(
            f"corpus {corpus.name!r} has no training text: {totals.validation_documents} of "
            f"{totals.documents + totals.validation_documents} documents were held out, none is left; divide it into "
            "more documents (a separator, format: lines, a smaller shards.piece_bytes) or lower validation_fraction"
        )
    sources = [{"shard": shard.number, **vars(piece)} for shard in work for piece in shard.pieces]
    store.write_json(f"{step.key}/{SOURCES}", sources, indent=None)
    notes = [SOURCES, *(record_file(record.number) for record in records)]
    files = [file for record in records for file in record.files]
    files += [digest_file(store.fetch(f"{step.key}/{name}"), name) for name in notes]
    manifest = describe(step, files, details, notes)
    for name, damage in find_damage(store, step.key, manifest, "sizes").items():
        raise StorageError(f"{store.path(step.key)}/{name} {damage}: another process changes this store; run it again")
    store.delete(f"{step.key}/{STARTED}")
    clear_mark(store, step.key)
    write_manifest(store, step.key, manifest)
    if totals.bad_records:
        log.warning("corpus %s: skipped %s", corpus.name, describe_bad(totals.bad_records, skipped))
    return manifest
