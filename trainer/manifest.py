"""Manifests: the last file written of every artifact, which lists all others with their size and checksum.

A folder without its manifest does not exist. Fingerprints name what an artifact's bytes depend on.
"""

import hashlib
import json
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from trainer import __version__
from trainer.errors import ArtifactError, WrongContent
from trainer.storage import Store

MANIFEST = "manifest.json"
FORMAT = 1


class FileRecord(BaseModel):
    """One file of an artifact."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    size: int
    sha256: str


class Manifest(BaseModel):
    """What an artifact consists of, and what it was made from."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: int
    kind: str
    fingerprint: str
    headrace: str
    created: str
    files: list[FileRecord]
    details: dict[str, Any]

    @model_validator(mode="before")
    @classmethod
    def _unchanged(cls, values: Any) -> Any:
        return unseal(values) if isinstance(values, dict) else values

    def digests(self) -> dict[str, str]:
        """The SHA-256 of each file, by name."""
        return {record.name: record.sha256 for record in self.files}

    def size(self) -> int:
        """Bytes of all files."""
        return sum(record.size for record in self.files)


class ArtifactRef(BaseModel):
    """What tasks hand to each other: where an artifact is and what it holds, never its data."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    key: str
    fingerprint: str
    size: int
    reused: bool = False


def fingerprint(value: Any) -> str:
    """A 16-digit name of a JSON-like value: equal values, and only they, have equal names."""
    canonical = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


def seal(values: dict[str, Any]) -> dict[str, Any]:
    """The values with a checksum of them, for a JSON file that no other file lists."""
    return {**values, "checksum": fingerprint(values)}


def unseal(values: dict[str, Any]) -> dict[str, Any]:
    """The values without their checksum, if there is one. Raises `ValueError` if it does not match them."""
    rest = {key: value for key, value in values.items() if key != "checksum"}
    if "checksum" in values and values["checksum"] != fingerprint(rest):
        raise ValueError("it does not match its own checksum")
    return rest


def digest_file(path: Path, name: str | None = None) -> FileRecord:
    """A file's size and SHA-256."""
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256")
        return FileRecord(name=name or path.name, size=file.tell(), sha256=digest.hexdigest())


def make_manifest(kind: str, name: str, files: Iterable[FileRecord], details: dict[str, Any]) -> Manifest:
    """The manifest of an artifact whose fingerprint is `name`."""
    return Manifest(
        format=FORMAT,
        kind=kind,
        fingerprint=name,
        headrace=__version__,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        files=sorted(files, key=lambda record: record.name),
        details=details,
    )


def publish_folder(store: Store, folder: Path, key: str, kind: str, name: str, details: dict[str, Any]) -> Manifest:
    """Publish a staged folder of finished files as an artifact; its manifest appears last."""
    files = [digest_file(path) for path in folder.iterdir()]
    manifest = make_manifest(kind, name, files, details)
    (folder / MANIFEST).write_bytes(_sealed(manifest))
    store.put_folder(folder, key, last=MANIFEST)
    return manifest


def write_manifest(store: Store, key: str, manifest: Manifest) -> None:
    """Commit an artifact whose files are already in place."""
    store.write_bytes(f"{key}/{MANIFEST}", _sealed(manifest))


def read_manifest(store: Store, key: str, kind: str) -> Manifest | None:
    """The manifest of the artifact under a key, or None if there is none.

    Raises `ArtifactError` if it is of another kind or format.
    """
    try:
        raw = store.read_bytes(f"{key}/{MANIFEST}")
    except FileNotFoundError:
        return None
    try:
        manifest = Manifest.model_validate_json(raw)
    except ValidationError as error:
        raise ArtifactError(f"{store.path(key)}/{MANIFEST} is damaged or of another version of headrace: {error}") from error
    if manifest.kind != kind or manifest.format != FORMAT:
        raise ArtifactError(
            f"{store.path(key)} holds {manifest.kind!r} in format {manifest.format}; expected {kind!r} in format {FORMAT}"
        )
    return manifest


def find_damage(
    store: Store, key: str, manifest: Manifest, only: Iterable[str] | None = None, content: bool = True
) -> dict[str, str]:
    """Read the artifact's files again; return what is wrong by file name. `only` limits it to some names.

    Without `content`, files are only looked for, with their sizes: enough where a copy's content is checked when it is fetched.
    """
    wanted = None if only is None else set(only)
    records = [record for record in manifest.files if wanted is None or record.name in wanted]
    with ThreadPoolExecutor() as pool:
        found = pool.map(lambda record: _damage(store, f"{key}/{record.name}", record, content), records)
        return {record.name: damage for record, damage in zip(records, found, strict=True) if damage}


def fetch_artifact(store: Store, key: str, kind: str) -> Path:
    """A local folder with the artifact's files: its own folder, or verified copies. Raises `ArtifactError` if there is none."""
    manifest = read_manifest(store, key, kind)
    if manifest is None:
        raise ArtifactError(f"{store.path(key)} holds no published {kind}")
    return store.fetch_folder(key, manifest.digests())


def require_intact(store: Store, key: str, manifest: Manifest) -> None:
    """Raise `ArtifactError` naming the first damaged file, if any; a remote one's content is checked when it is fetched."""
    for name, damage in find_damage(store, key, manifest, content=store.local is not None).items():
        raise ArtifactError(f"{store.path(key)}/{name} {damage}")


def _sealed(manifest: Manifest) -> bytes:
    return (json.dumps(seal(manifest.model_dump(mode="json")), indent=2, ensure_ascii=False) + "\n").encode()


def _damage(store: Store, key: str, record: FileRecord, content: bool) -> str | None:
    try:
        if content:
            path = store.fetch(key, record.sha256, check=True)
            found = digest_file(path, record.name) if store.local else record  # a copy that is fetched is what it must be
            store.release(key)
        else:
            found = record.model_copy(update={"size": store.size(key)})
    except FileNotFoundError:
        return "is missing"
    except WrongContent as error:
        return str(error).removeprefix(f"{store.path(key)} ")
    if found.size != record.size:
        return f"has {found.size} bytes, its manifest says {record.size}"
    if found.sha256 != record.sha256:
        return f"does not match its checksum (sha256 {found.sha256[:12]}…, its manifest says {record.sha256[:12]}…)"
    return None
