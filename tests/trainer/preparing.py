"""Small preparations in real worker processes, and what they leave in the store."""

import json
import os
from pathlib import Path
from typing import Any, NamedTuple

from tests.support import LONG_AGO
from tests.trainer.made import prepare
from tests.trainer.raw_files import sources
from trainer.common.progress import silent
from trainer.config.jobs import PrepareJob
from trainer.records.plans import PreparedData
from trainer.store.manifest import MANIFEST
from trainer.store.storage import Store

SHARDS = 5


class Stamp(NamedTuple):
    """What tells whether a file was written again."""

    inode: int
    changed: int
    size: int


def write_raw(folder: Path) -> Path:
    """A corpus of source files that were last changed long ago."""
    folder.mkdir(parents=True)
    for name, text in sources().items():
        write_old(folder / name, text)
    return folder


def write_old(path: Path, text: str) -> None:
    """Write a raw file that looks as if it was last changed long ago."""
    path.write_text(text, encoding="utf-8")
    os.utime(path, (LONG_AGO + len(text), LONG_AGO + len(text)))


def job_of(raw: Path, store: Path, **data: Any) -> PrepareJob:
    """A job with one corpus, `code`; `data` changes the job's data."""
    corpora = [{"name": "code", "paths": [f"{raw}/**/*.py"], "format": "source"}]
    values = {
        "corpora": corpora, "tokenizer": {"vocab_size": 400}, "shards": {"num_shards": SHARDS, "piece_bytes": 4096},
        "validation_fraction": 0.1, "workers": 1,
    }  # fmt: skip
    return PrepareJob.model_validate({"store": str(store), "data": {**values, **data}})


def run(job: PrepareJob) -> PreparedData:
    return prepare(job, silent())


def set_folder(job: PrepareJob, prepared: PreparedData) -> Path:
    """The folder of the one corpus's shards."""
    (shards,) = prepared.shards
    return Path(job.store, shards.key)


def content(folder: Path) -> dict[str, Any]:
    """The bytes of every file in a shard set; of the manifest, all but the time it was made."""
    files: dict[str, Any] = {path.name: path.read_bytes() for path in folder.iterdir()}
    manifest = json.loads(files[MANIFEST])
    assert manifest.pop("created")
    assert manifest.pop("checksum")
    return {**files, MANIFEST: manifest}


def shard_bytes(folder: Path) -> dict[str, bytes]:
    """The bytes of a shard set's tokens, indexes and checksums of blocks."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix in (".bin", ".idx", ".sums")}


def stamps(folder: Path) -> dict[str, Stamp]:
    """A stamp of every file below a folder."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    found = {str(path.relative_to(folder)): path.stat() for path in files}
    return {name: Stamp(stat.st_ino, stat.st_mtime_ns, stat.st_size) for name, stat in found.items()}


def leftovers(store: Path) -> list[str]:
    return Store(str(store)).names(".staging")
