"""A corpus to its published shard set, doing only the work that is not already in the store.

Pieces are dealt to shards by a hash of their names, so a changed or added file touches one shard only. Finished shards of
an interrupted or an older set are found by their fingerprint and checked against their checksums before they are used. Those
of a set that is published already are read only if the job says so (`verify`), or if damage was found in it.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict

from trainer.common.bad_records import describe_bad, first_of
from trainer.common.errors import ArtifactError, CorpusError, StorageError, TokenizerError
from trainer.common.process import usable_cores
from trainer.common.progress import Progress, silent
from trainer.config.corpora import CorpusConfig, DataConfig, ShardConfig
from trainer.config.engines import RayEngine
from trainer.config.jobs import PrepareJob
from trainer.corpus.carrying import carried, carrier_of
from trainer.corpus.curated import read_curated
from trainer.corpus.decisions import Reader, corpora_left, open_reader, transform_options
from trainer.corpus.engine_choice import settle_engine
from trainer.corpus.look import files_of, look_at_text
from trainer.corpus.pieces import Piece, dealt
from trainer.corpus.raw_files import is_compressed
from trainer.corpus.readers import ignore
from trainer.corpus.shard_building import Recipe, ShardWork, build, load_encoder
from trainer.corpus.shard_reuse import finished_shards
from trainer.corpus.shard_workers import Workers
from trainer.corpus.shards import FORMAT, KIND, ShardRecord, record_file, token_dtype
from trainer.corpus.sources import find_pieces, forgetting_changed, reading_options
from trainer.corpus.suspects import clear, is_suspect
from trainer.corpus.token_bytes import add_digests
from trainer.corpus.tokenizer import TokenizerInfo, keeps_text, load_tokenizer
from trainer.corpus.tokenizer_making import find_tokenizer, make_tokenizer, spread
from trainer.corpus.tokenizer_repair import find_lost, require_same_tokenizer, restore_tokenizer
from trainer.records.holds import hold_reused
from trainer.store.block_sums import BLOCK_BYTES
from trainer.store.manifest import (
    MANIFEST,
    ArtifactRef,
    Manifest,
    digest_file,
    find_damage,
    fingerprint,
    make_manifest,
    read_manifest,
    recall_manifest,
    write_manifest,
)
from trainer.store.storage import Store

log = logging.getLogger(__name__)

SOURCES = "sources.json"
STARTED = "started.json"
"""Only there while a set is made: its age says that the set is no leftover, whose shards may be old ones."""
SAMPLED_DOCUMENTS = 64


class PreparedData(BaseModel):
    """References to everything that training reads."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    tokenizer: ArtifactRef
    shards: list[ArtifactRef]


def prepare_tokenizer(job: PrepareJob, progress: Progress, decisions_key: str | None = None) -> ArtifactRef:
    """Publish the tokenizer, or find it published and intact; a damaged one that is needed is put back.

    Raises `CorpusError`, and `TokenizerError`, also for a damaged one that is needed and cannot be put back.
    """
    store = Store(job.store)
    if found := find_tokenizer(store, job.data):
        return found
    store.sweep()
    lost = find_lost(store, job.data)
    if lost and restore_tokenizer(store, job.data, lost) and (found := find_tokenizer(store, job.data)):
        return found
    with progress.bar("tokenizer", None, "B") as bar, forgetting_changed(store):
        pieces = [(corpus, find_pieces(store, corpus, job.data.shards.piece_bytes)) for corpus in job.data.corpora]
        for corpus, each in pieces:
            look_at_text(corpus, files_of(each))
        texts = [(open_reader(store, job.data, corpus, found, decisions_key), found) for corpus, found in pieces]
        if lost is None:
            return make_tokenizer(store, job.data, texts, bar.advance)
        return make_tokenizer(store, job.data, texts, bar.advance, partial(require_same_tokenizer, store, lost))


def prepare_corpus(
    job: PrepareJob, name: str, tokenizer_key: str, progress: Progress, decisions_key: str | None = None
) -> ArtifactRef:
    """Publish the shards of a corpus, of the documents that stay, or find them published.

    Raises `CorpusError` and `RecordError` for bad input, `ArtifactError` for decisions that are of other text, `StorageError`
    if the store refuses.
    """
    store, data = Store(job.store), job.data
    corpus = next(corpus for corpus in data.corpora if corpus.name == name)
    tokenizer = load_tokenizer(store, tokenizer_key)
    with Workers(data.workers or usable_cores()) as workers:

        def start_early(raw_bytes: int) -> None:
            if not isinstance(job.engine, RayEngine):
                workers.start_early(raw_bytes, job.store, tokenizer_key, data.tokenizer.engine)

        key, work = locate_corpus(store, data, corpus, tokenizer, progress, decisions_key, start_early)
        read_all = job.verify or is_suspect(store, key)
        if (manifest := _intact_manifest(store, key, read_all)) and hold_reused(store, key):
            _check_budget(corpus, manifest.details["totals"]["bad_records"], manifest.details.get("skipped", []))
            return ArtifactRef(key=key, fingerprint=key[-16:], size=manifest.size(), reused=True)

        store.sweep()
        store.write_json(f"{key}/{STARTED}", {})
        records = finished_shards(store, key, name, work, read_all)
        if records:
            log.info("corpus %s: %d of %d shards need not be built", name, len(records), len(work))
        missing = [shard for shard in work if shard.number not in records]
        look_at_text(corpus, files_of([piece for shard in missing for piece in shard.pieces]))
        known_size = not any(is_compressed(piece.path) for shard in missing for piece in shard.pieces)
        load = partial(load_encoder, job.store, tokenizer_key, data.tokenizer.engine)
        with forgetting_changed(store), carrier_of(job, workers, load) if missing else nullcontext(workers) as carrier:
            transform = data.curation.transform if data.curation else None
            engine = _checked_engine(store, data, corpus, work, tokenizer)
            recipe = Recipe(job.store, key, corpus, tokenizer_key, engine, data.validation_fraction, transform)
            with progress.bar(f"tokenize {name}", sum(s.raw_bytes for s in missing) if known_size else None, "B") as bar:
                largest = sorted(missing, key=lambda shard: shard.raw_bytes, reverse=True)
                for record in carried(carrier, bar, build, ((recipe, shard) for shard in largest)):
                    records[record.number] = record
    options = {"recipe": corpus_recipe(data, corpus), **({"decisions": decisions_key} if decisions_key else {})}
    manifest = _commit(store, recipe, key[-16:], tokenizer, work, [records[shard.number] for shard in work], options)
    return ArtifactRef(key=key, fingerprint=key[-16:], size=manifest.size())


def find_prepared(job: PrepareJob, decisions_key: str | None) -> PreparedData | None:
    """The job's published tokenizer and shards, if all of them exist; whether they are intact is not looked at."""
    store = Store(job.store)
    tokenizer = find_tokenizer(store, job.data)
    if tokenizer is None:
        return None
    info = load_tokenizer(store, tokenizer.key)
    shards = []
    for corpus in corpora_left(store, job.data, decisions_key):
        key, _ = locate_corpus(store, job.data, corpus, info, silent(), decisions_key)
        manifest = recall_manifest(store, key, KIND)
        if manifest is None or not hold_reused(store, key):
            return None
        shards.append(ArtifactRef(key=key, fingerprint=manifest.fingerprint, size=manifest.size(), reused=True))
    return PreparedData(tokenizer=tokenizer, shards=shards)


def shard_manifests(store: Store, data: PreparedData) -> list[Manifest]:
    """The manifests of all shard sets. Raises if one is missing, or was made with another tokenizer."""
    sha256 = load_tokenizer(store, data.tokenizer.key).sha256
    manifests = []
    for ref in data.shards:
        manifest = read_manifest(store, ref.key, KIND)
        if manifest is None:
            raise ArtifactError(f"{store.path(ref.key)} holds no published shards; run prepare-data first")
        if manifest.details["tokenizer_sha256"] != sha256:
            raise TokenizerError(
                f"{store.path(ref.key)} was tokenized with {manifest.details['tokenizer']}, not with {data.tokenizer.key}; "
                "prepare the data anew"
            )
        manifests.append(manifest)
    return manifests


def shard_count(options: ShardConfig, raw_bytes: int) -> int:
    """Number of shards: as given, else one for every `shard_bytes` of raw input."""
    return options.num_shards or max(1, -(-raw_bytes // options.shard_bytes))


def locate_corpus(
    store: Store,
    data: DataConfig,
    corpus: CorpusConfig,
    tokenizer: TokenizerInfo,
    progress: Progress,
    decisions_key: str | None,
    on_changed: Callable[[int], None] = lambda size: None,
) -> tuple[str, list[ShardWork]]:
    """Where the corpus's shard set belongs, and what it consists of; reads raw files that changed since the last look.

    Before it reads them, `on_changed` is told how many bytes they are.
    """
    with progress.bar(f"read {corpus.name}", None, "B") as bar:
        pieces = find_pieces(store, corpus, data.shards.piece_bytes, bar.advance, on_changed)
    work = deal(pieces, open_reader(store, data, corpus, pieces, decisions_key), data, tokenizer)
    digest = fingerprint([FORMAT, corpus.name, [shard.fingerprint for shard in work]])
    return f"shards/{corpus.name}-{digest}", work


def deal(pieces: Sequence[Piece], reader: Reader, data: DataConfig, tokenizer: TokenizerInfo) -> list[ShardWork]:
    """Which pieces go into which shard, and each shard's fingerprint.

    Of decisions it holds what is dropped of the shard's own pieces: other ones leave it as it is.
    """
    count = shard_count(data.shards, sum(piece.size for piece in pieces))
    common = [FORMAT, reading_options(reader.corpus), tokenizer.sha256, tokenizer.eos_id, data.validation_fraction]
    work = []
    for number, hand in enumerate(dealt(pieces, count)):
        decided = tuple(map(reader.of_piece, hand))
        made_of: list[Any] = [*common, [[p.key, p.index, p.last, p.sha256] for p in hand]]
        if any(decided) or reader.transform is not None:
            bits = [each and [each.documents, each.kept.hex(), each.goes_on] for each in decided]
            made_of += [transform_options(reader.transform), bits]
        work.append(ShardWork(number, fingerprint(made_of), tuple(hand), decided))
    return work


def corpus_recipe(data: DataConfig, corpus: CorpusConfig) -> dict[str, Any]:
    """The options that a set's bytes depend on and that its manifest does not tell otherwise."""
    return {"format": FORMAT, "corpus": reading_options(corpus), "piece_bytes": data.shards.piece_bytes}


def _intact_manifest(store: Store, key: str, read_all: bool) -> Manifest | None:
    """The set's manifest if all its files are as it says; a damaged set loses its manifest, to be completed anew.

    Unless all are to be read, files are only looked for, with their sizes: whoever reads them compares each block.
    """
    manifest = recall_manifest(store, key, KIND)
    if manifest is None:
        return None
    damage = find_damage(store, key, manifest, content=read_all)
    for file, problem in damage.items():
        log.warning("%s/%s %s: making its shard anew", store.path(key), file, problem)
    if damage:
        store.delete(f"{key}/{MANIFEST}")
        return None
    if read_all:
        clear(store, key)
    return manifest


def _checked_engine(
    store: Store, data: DataConfig, corpus: CorpusConfig, work: Sequence[ShardWork], tokenizer: TokenizerInfo
) -> str:
    """The engine to build with, after its ids were compared with the reference on documents from all over the corpus."""
    transform = data.curation.transform if data.curation else None
    decided = {piece: known for shard in work for piece, known in zip(shard.pieces, shard.decided, strict=True)}

    def samples() -> Iterator[bytes]:
        for piece in spread(list(decided)):
            for document in islice(read_curated(piece, corpus, ignore, transform, decided[piece]), 8):
                yield document.text[:65536].decode(errors="ignore").encode()

    documents = list(islice(samples(), SAMPLED_DOCUMENTS))
    return settle_engine(store, corpus.name, data.tokenizer.engine, tokenizer, documents)


def _check_budget(corpus: CorpusConfig, bad_records: int, first: Sequence[str]) -> None:
    if bad_records > corpus.max_bad_records:
        raise CorpusError(
            f"corpus {corpus.name!r}: at most {corpus.max_bad_records} bad records may be skipped, but "
            f"{describe_bad(bad_records, first)}; mend its files or raise max_bad_records"
        )


class _Totals(NamedTuple):
    raw_bytes: int
    documents: int
    tokens: int
    text_bytes: int
    validation_documents: int
    validation_tokens: int
    validation_bytes: int
    validation_token_bytes: int
    bad_records: int


def _commit(
    store: Store,
    recipe: Recipe,
    digest: str,
    tokenizer: TokenizerInfo,
    work: list[ShardWork],
    records: list[ShardRecord],
    options: dict[str, Any],
) -> Manifest:
    """Check the whole set and write its manifest, with the options that it was made with."""
    corpus = recipe.corpus
    totals = _Totals(*(sum(getattr(record, field) for record in records) for field in _Totals._fields))
    skipped = first_of(record.skipped for record in records)
    _check_budget(corpus, totals.bad_records, skipped)
    if not totals.tokens:
        raise CorpusError(
            f"corpus {corpus.name!r} has no training text: {totals.validation_documents} of "
            f"{totals.documents + totals.validation_documents} documents were held out and none was left; divide it into more "
            "documents (a separator, format: lines, a smaller shards.piece_bytes) or lower validation_fraction"
        )
    sources = [{"shard": shard.number, **vars(piece)} for shard in work for piece in shard.pieces]
    store.write_json(f"{recipe.key}/{SOURCES}", sources, indent=None)
    files = [file for record in records for file in record.files]
    files += [
        digest_file(store.fetch(f"{recipe.key}/{name}"), name)
        for name in [SOURCES, *(record_file(record.number) for record in records)]
    ]
    details = {
        "corpus": corpus.name,
        "dtype": token_dtype(tokenizer.max_id).str,
        "block_bytes": BLOCK_BYTES,
        "eos_id": tokenizer.eos_id,
        "vocab_size": tokenizer.vocab_size,
        "tokenizer": recipe.tokenizer_key,
        "tokenizer_sha256": tokenizer.sha256,
        "engine": recipe.engine,
        "num_shards": len(records),
        "shard_tokens": [record.tokens for record in records],
        "totals": totals._asdict(),
        "keeps_text": keeps_text(tokenizer.json),
        "validation_digest": add_digests(record.validation_digest for record in records),
        "validation_fraction": recipe.validation_fraction,
        **({"skipped": skipped} if skipped else {}),
        **options,
    }
    manifest = make_manifest(KIND, digest, files, details)
    for name, damage in find_damage(store, recipe.key, manifest, content=False).items():
        raise StorageError(f"{store.path(recipe.key)}/{name} {damage}: something else changes this store; run it again")
    store.delete(f"{recipe.key}/{STARTED}")
    clear(store, recipe.key)
    write_manifest(store, recipe.key, manifest)
    if totals.bad_records:
        log.warning("corpus %s: skipped %s", corpus.name, describe_bad(totals.bad_records, skipped))
    return manifest
