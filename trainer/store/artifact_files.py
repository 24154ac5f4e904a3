"""An artifact's files: checked against its manifest, and fetched to this machine."""

import hashlib
import logging
import re
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from trainer.common.errors import ArtifactError, ConfigError, WrongContent, brief
from trainer.common.transient import is_transient
from trainer.store.manifest import MANIFEST, FileRecord, Manifest, parse_manifest, require_manifest
from trainer.store.names import CARD, CHECKPOINT_KIND, FINAL_KIND
from trainer.store.storage import Store

log = logging.getLogger(__name__)

REPAIR = "; prepare the data again to rebuild it from the raw files"
"""Remedy for a damaged file of prepared data. Preparation checks every file, and reads all files of a damaged set."""

REPUBLISH = "; run its command again to publish it again"
"""Remedy for a damaged file of a final model."""

CONTENT_NAMED = re.compile(r".+-[0-9a-f]{16}\.[a-z]+")
"""File names that end with a digest of the content: those of a checkpoint written by several ranks."""

REPLACED = (".safetensors", ".safetensors.index.json", "state.json")
"""Suffixes of the files that such files replace."""

Depth = Literal["sizes", "changed", "all"]
"""How deeply an artifact's files are checked: existence and sizes only, which is enough if each reader verifies what it
reads; also the content of files that this machine has not verified since they last changed; or the content of all.
"""

LOADED_WHOLE = (CHECKPOINT_KIND, FINAL_KIND)
"""Kinds whose files are fetched together to be loaded, whatever the limit of this machine's cache."""


def listed_names(folder: Path) -> set[str] | None:
    """Return the file names listed in a local folder's manifest, or None if it is missing or unreadable."""
    try:
        return set(parse_manifest((folder / MANIFEST).read_bytes()).digests())
    except (OSError, ValueError, RecursionError):
        return None


def named_by_content(name: str, sha256: str) -> str:
    """Return a file's name with its content's digest inserted before the last suffix."""
    stem, _, suffix = name.rpartition(".")
    return f"{stem}-{sha256[:16]}.{suffix}"


def find_damage(
    store: Store,
    key: str,
    manifest: Manifest,
    depth: Depth = "all",
    sizes: Callable[[str], Mapping[str, int]] | None = None,
) -> dict[str, str]:
    """Check the artifact's files; return the problems by file name. `sizes` lists a folder, by default the store's."""
    records = list(manifest.files)
    if depth == "sizes":  # one listing covers most files; the others are queried one by one
        listed = (sizes or store.sizes)(key)
        records = [record for record in records if listed.get(record.name) != record.size]
    beyond = manifest.kind in LOADED_WHOLE
    with ThreadPoolExecutor() as pool:
        found = pool.map(lambda record: _damage(store, f"{key}/{record.name}", record, depth, beyond), records)
        return {record.name: damage for record, damage in zip(records, found, strict=True) if damage}


def fetch_artifact(store: Store, key: str, kind: str) -> Path:
    """Return a local folder with the artifact's files: its own folder, or one with verified copies.

    Raises `ArtifactError` if the artifact does not exist.
    """
    return fetch_files(store, key, require_manifest(store, key, kind, f"holds no published {kind}"))


def fetch_files(store: Store, key: str, manifest: Manifest, wanted: Callable[[str], bool] = lambda name: True) -> Path:
    """Return a local folder with the files in an artifact's manifest; from a remote store only the `wanted` ones.

    Raises `ArtifactError` if a file is missing, for example because another process has removed the artifact since its
    manifest was read, or if a local folder contains other files, because libraries would load them as part of it.
    Remains of interrupted or replaced saves in parts are allowed: parts are loaded by `listed_names`.
    """
    if store.local is not None:
        in_parts = any(map(CONTENT_NAMED.fullmatch, manifest.digests()))
        for name in store.names(key):
            left = CONTENT_NAMED.fullmatch(name) or (in_parts and name.endswith(REPLACED))
            if name not in (MANIFEST, CARD, *manifest.digests()) and not name.startswith(".") and not left:
                raise ArtifactError(
                    f"{store.path(key)}/{name} is not listed in the folder's {MANIFEST}; move it elsewhere"
                )
    digests = {name: sha256 for name, sha256 in manifest.digests().items() if wanted(name)}
    try:
        return store.fetch_folder(key, digests)
    except FileNotFoundError as error:
        missing = next((name for name in digests if not store.exists(f"{key}/{name}")), None)
        place = store.path(f"{key}/{missing}") if missing else f"a file of {store.path(key)}"
        raise ArtifactError(f"{place} is missing; if another process is removing its folder, run this again") from error


@contextmanager
def explaining_removal(store: Store, key: str | None) -> Iterator[None]:
    """Raise `ArtifactError` for an error of the block if the artifact of a local store was removed meanwhile, such as
    a checkpoint by its training. Libraries take a missing folder for the name of a repository.
    """
    try:
        yield
    except (ArtifactError, ConfigError, OSError) as error:
        if key is None or store.local is None or is_transient(error) or store.exists(f"{key}/{MANIFEST}"):
            raise
        raise ArtifactError(
            f"{store.path(key)} was removed while it was read: its training has saved newer checkpoints, or a command "
            f"removed it ({brief(error)}); run this again, or set training.keep_last to keep more checkpoints"
        ) from error


def is_intact(store: Store, key: str, manifest: Manifest, depth: Depth = "all") -> bool:
    """Whether `find_damage` finds nothing; each damaged file is logged as a warning."""
    damage = find_damage(store, key, manifest, depth)
    for file, problem in damage.items():
        log.warning("%s/%s %s: rebuilding it", store.path(key), file, problem)
    return not damage


def require_intact(store: Store, key: str, manifest: Manifest, remedy: str = "", depth: Depth = "all") -> None:
    """Raise `ArtifactError` for the first damaged file that `find_damage` finds."""
    for name, damage in find_damage(store, key, manifest, depth).items():
        raise ArtifactError(f"{store.path(key)}/{name} {damage}{remedy}")


def fetch_made(store: Store, key: str, name: str, sha256: str, recheck: bool = False) -> Path:
    """Return a local path of a file of prepared data, like `Store.fetch`; raise `ArtifactError` with the remedy if it
    is damaged.
    """
    with _repaired_by_preparing(store, f"{key}/{name}"):
        return store.fetch(f"{key}/{name}", sha256, recheck)


def locate_made(store: Store, key: str, record: FileRecord) -> Path:
    """Return a local path of a file of prepared data, like `Store.locate`: the caller verifies what it reads."""
    with _repaired_by_preparing(store, f"{key}/{record.name}"):
        return store.locate(f"{key}/{record.name}", record.sha256)


def read_made(store: Store, key: str, record: FileRecord) -> bytes:
    """Return the bytes of a small file of prepared data; raise `ArtifactError` with the remedy if it is damaged."""
    with _repaired_by_preparing(store, f"{key}/{record.name}"):
        raw = store.read_bytes(f"{key}/{record.name}")
        if hashlib.sha256(raw).hexdigest() != record.sha256:
            raise WrongContent(f"{store.path(f'{key}/{record.name}')} does not match its checksum")
    return raw


@contextmanager
def _repaired_by_preparing(store: Store, key: str) -> Iterator[None]:
    """Add the remedy to the error about a missing or damaged file."""
    try:
        yield
    except FileNotFoundError as error:
        raise ArtifactError(f"{store.path(key)} is missing{REPAIR}") from error
    except WrongContent as error:
        raise ArtifactError(f"{error}{REPAIR}") from error


def _damage(store: Store, key: str, record: FileRecord, depth: Depth, beyond: bool) -> str | None:
    try:
        # The size of a remote file that is fetched anyway is not queried, to save a request.
        size = record.size if depth != "sizes" and not store.local else store.size(key)
        if size != record.size:
            return f"has {size} bytes, its manifest says {record.size}"
        if depth != "sizes":
            store.fetch(key, record.sha256, recheck=depth == "all", beyond=beyond)
            store.release(key)
    except FileNotFoundError:
        return "is missing"
    except WrongContent as error:
        return str(error).removeprefix(f"{store.path(key)} ")
    return None
