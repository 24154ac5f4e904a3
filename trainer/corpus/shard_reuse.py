"""Finding shards that need not be built: in an interrupted set's own folder, or in an older set of the same corpus."""

import re
from collections.abc import Sequence

from trainer.corpus.shard_building import ShardWork
from trainer.corpus.shards import KIND, ShardRecord, read_record, record_file, write_record
from trainer.store.manifest import find_damage, make_manifest
from trainer.store.storage import Store


def finished_shards(
    store: Store, key: str, corpus: str, work: Sequence[ShardWork], read_all: bool = False
) -> dict[int, ShardRecord]:
    """The wanted shards that exist with intact files, by number; those of older sets are taken over into this one.

    The files of a local store are read. Those of a remote one are looked for, with their sizes, unless all are to be read.
    """
    found = find_finished(store, key, corpus, work, content=read_all or store.local is not None)
    return {
        number: record if folder == key else _take_over(store, folder, key, record, number)
        for number, (folder, record) in found.items()
    }


def find_finished(
    store: Store, key: str, corpus: str, work: Sequence[ShardWork], content: bool
) -> dict[int, tuple[str, ShardRecord]]:
    """The wanted shards that exist with intact files, by number, each with the folder of the set that it is in.

    Without `content`, files are only looked for, with their sizes.
    """
    found: dict[int, tuple[str, ShardRecord]] = {}
    for shard in work:
        record = read_record(store, f"{key}/{record_file(shard.number)}")
        if record and record.fingerprint == shard.fingerprint and _intact(store, key, record, content):
            found[shard.number] = key, record
    missing = {shard.fingerprint: shard.number for shard in work if shard.number not in found}
    for folder in _older_sets(store, key, corpus):
        if not missing:
            break
        for file in store.names(folder):
            record = read_record(store, f"{folder}/{file}") if re.fullmatch(r"shard-\d+\.json", file) else None
            if record and record.fingerprint in missing and _intact(store, folder, record, content):
                found[missing.pop(record.fingerprint)] = folder, record
    return found


def _older_sets(store: Store, key: str, corpus: str) -> list[str]:
    pattern = re.compile(re.escape(corpus) + r"-[0-9a-f]{16}")
    folders = [f"shards/{name}" for name in store.names("shards") if pattern.fullmatch(name)]
    return [folder for folder in folders if folder != key]


def _intact(store: Store, folder: str, record: ShardRecord, content: bool) -> bool:
    manifest = make_manifest(KIND, record.fingerprint, record.files, {})
    return not find_damage(store, folder, manifest, content=content)


def _take_over(store: Store, folder: str, key: str, record: ShardRecord, number: int) -> ShardRecord:
    """Copy a shard's files into this set, under its number here."""
    files = []
    for file in record.files:
        side, _, ending = file.name.replace(".", "-").split("-")
        name = f"{side}-{number:05d}.{ending}"
        store.copy(f"{folder}/{file.name}", f"{key}/{name}")
        files.append(file.model_copy(update={"name": name}))
    moved = record.model_copy(update={"number": number, "files": files})
    write_record(store, key, moved)
    return moved
