"""Manifests: the last file written of every artifact. It records the artifact's inputs and lists its files.

A folder without a manifest counts as missing. The fingerprint of a step's result (records/steps.py) is computed from
its recipe and the contents of its inputs; that of a checkpoint or final model is its run's.
"""

import hashlib
import json
import logging
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError

from trainer import __version__
from trainer.common.errors import ArtifactError, PipelineError, in_one_line
from trainer.store.checked_files import digest_stream
from trainer.store.details import DATA_KINDS, require_details
from trainer.store.names import Count, Digest, FileName, Key
from trainer.store.storage import Store

log = logging.getLogger(__name__)

MANIFEST = "manifest.json"

FORMAT = 2


def _time(text: str) -> str:
    if datetime.fromisoformat(text).tzinfo is None:
        raise ValueError(f"{text!r} is a time without a time zone")
    return text


_canonical = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode

Time = Annotated[str, AfterValidator(_time)]
"""A time in ISO 8601 with a time zone."""


class FileRecord(BaseModel):
    """One file of an artifact."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: FileName
    size: Count
    sha256: Digest


class Input(BaseModel):
    """An artifact or run that another was built from: its key, and the digest of its content at that time."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    key: Key
    content: str


class Manifest(BaseModel):
    """The inputs and files of an artifact. NaN and infinities are written as such.

    `recipe` contains every setting that the artifact's bytes depend on, and `inputs` its inputs by role. Entries listed
    in `told` are recorded for users and lineage only and are not part of the fingerprint. `notes` lists files about how
    it was built, which are not part of its `content`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")

    format: int
    kind: str
    fingerprint: str
    headrace: str
    created: Time
    recipe: dict[str, Any] = {}
    inputs: dict[str, Input] = {}
    told: list[str] = []
    notes: list[str] = []
    files: list[FileRecord]
    details: dict[str, Any]

    @property
    def content(self) -> str:
        """A digest of all files except the notes: artifacts with equal content are interchangeable as inputs."""
        return content_of(self.files, self.notes)

    def digests(self) -> dict[str, str]:
        """The SHA-256 of each file, by name."""
        return {record.name: record.sha256 for record in self.files}

    def size(self) -> int:
        """Bytes of all files."""
        return sum(record.size for record in self.files)


class ArtifactRef(BaseModel):
    """A reference to an artifact, passed between tasks instead of its data.

    `fingerprint` is used in the names of runs built from it; for an encoded set it ignores the test split.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    key: Key
    fingerprint: str
    size: Count
    content: str = ""
    reused: bool = False

    def as_input(self) -> Input:
        """The record of this artifact in the manifest of another one built from it."""
        return Input(key=self.key, content=self.content)


def content_of(files: Iterable[FileRecord], notes: Iterable[str] = ()) -> str:
    """The digest of the files, without notes."""
    left_out = set(notes)
    return fingerprint({record.name: record.sha256 for record in files if record.name not in left_out})


def name_of(recipe: Mapping[str, Any], inputs: Mapping[str, Input], told: Iterable[str] = ()) -> str:
    """The fingerprint of the result of a recipe with some inputs, without the entries listed in `told`."""
    left_out = set(told)
    settings = {name: value for name, value in recipe.items() if name not in left_out}
    return fingerprint([settings, {role: each.content for role, each in inputs.items() if role not in left_out}])


def name_in(key: str) -> str:
    """The name in a key, or in its last part, that ends with NAME-FINGERPRINT."""
    return key.rpartition("/")[2].rpartition("-")[0]


def fingerprinted(names: Iterable[str], name: str, digits: int = 16) -> list[str]:
    """Those of the names that are `name`-FINGERPRINT."""
    pattern = re.compile(re.escape(name) + f"-[0-9a-f]{{{digits}}}")
    return [each for each in names if pattern.fullmatch(each)]


def fingerprint(value: Any) -> str:
    """A 16-digit name of a JSON-like value; only equal values have equal names."""
    return hashlib.sha256(_canonical(value).encode()).hexdigest()[:16]


def seal(values: dict[str, Any], place: str | None = None) -> dict[str, Any]:
    """Add a checksum to the values of a JSON file that no manifest lists; with `place`, valid only at that path."""
    return {**values, "checksum": _checksum(values, place)}


def unseal(values: dict[str, Any], place: str | None = None) -> dict[str, Any]:
    """Verify and remove the checksum; raise `ValueError` if it is missing or does not match the values or the path."""
    rest = {key: value for key, value in values.items() if key != "checksum"}
    if "checksum" not in values:
        raise ValueError("it has no checksum: another program wrote it, or another version of headrace")
    if values["checksum"] != _checksum(rest, place):
        other = "" if place is None else ", or belongs to another path"
        raise ValueError(f"it does not match its checksum: it was changed{other}")
    return rest


def _checksum(values: dict[str, Any], place: str | None) -> str:
    return fingerprint(values if place is None else [posixpath.normpath(place), values])


def digest_file(path: Path, name: str | None = None) -> FileRecord:
    """Return a file's size and SHA-256."""
    with open(path, "rb") as file:
        sha256 = digest_stream(file)
        return FileRecord(name=name or path.name, size=file.tell(), sha256=sha256)


def make_manifest(kind: str, name: str, files: Iterable[FileRecord], details: dict[str, Any]) -> Manifest:
    """Create the manifest of an artifact with the fingerprint `name`."""
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
    """Publish a staged folder of finished files as an artifact; its manifest is written last."""
    require_details(kind, details, {})
    manifest = make_manifest(kind, name, digest_folder(folder), details)
    put_published(store, folder, key, manifest)
    return manifest


def digest_folder(folder: Path) -> list[FileRecord]:
    """Return size and SHA-256 of all files of a staged folder, except the manifest of a failed publication."""
    return [digest_file(path) for path in folder.iterdir() if path.name != MANIFEST]


def put_published(store: Store, folder: Path, key: str, manifest: Manifest) -> None:
    """Publish a staged folder with the manifest that lists its files; the manifest is written last.

    An existing manifest with the same files, for example of an attempt whose answer was lost, is not removed first: a
    delayed, repeated delete request could otherwise arrive after the new manifest.
    """
    with store.explained("write", f"{key}/{MANIFEST}"):
        (folder / MANIFEST).write_bytes(_sealed(manifest))
    store.put_folder(folder, key, last=MANIFEST, same=store.local is None and _lists_the_same(store, key, manifest))


def _lists_the_same(store: Store, key: str, manifest: Manifest) -> bool:
    with suppress(ValueError, RecursionError):
        raw = store.find_bytes(f"{key}/{MANIFEST}")
        return raw is not None and parse_manifest(raw).files == manifest.files
    return False


def write_manifest(store: Store, key: str, manifest: Manifest) -> None:
    """Publish an artifact whose files are already in place."""
    store.write_bytes(f"{key}/{MANIFEST}", _sealed(manifest))


def read_manifest(store: Store, key: str, kind: str) -> Manifest | None:
    """Return the manifest of the artifact under a key, or None if it does not exist.

    Raises `ArtifactError` if it is damaged, has another kind or format, or belongs to another artifact.
    """
    raw = store.find_bytes(f"{key}/{MANIFEST}")
    if raw is None:
        return None
    with _explained(store, key):
        manifest = parse_manifest(raw)
    if manifest.kind != kind:
        raise ArtifactError(f"{store.path(key)} holds {manifest.kind!r}; expected {kind!r}")
    named = not manifest.recipe or manifest.fingerprint == name_of(manifest.recipe, manifest.inputs, manifest.told)
    if kind in DATA_KINDS and not (named and key.endswith(f"-{manifest.fingerprint}")):
        raise ArtifactError(
            f"{store.path(key)}/{MANIFEST} belongs to another {kind}, with the fingerprint {manifest.fingerprint}: "
            "restore the folder's own manifest, or delete the folder so that it is rebuilt"
        )
    with _explained(store, key):
        require_details(kind, manifest.details, manifest.recipe)
    return manifest


def require_manifest(
    store: Store, key: str, kind: str, otherwise: str, error: type[PipelineError] = ArtifactError
) -> Manifest:
    """The manifest of the artifact under a key; if it does not exist, raises an `error` that ends with `otherwise`."""
    manifest = read_manifest(store, key, kind)
    if manifest is None:
        raise error(f"{store.path(key)} {otherwise}")
    return manifest


def recall_manifest(store: Store, key: str, kind: str) -> Manifest | None:
    """Return the manifest of an artifact that can be rebuilt; if it is damaged, warn and return None."""
    try:
        return read_manifest(store, key, kind)
    except ArtifactError as error:
        log.warning("%s: rebuilding it", error)
        return None


@contextmanager
def _explained(store: Store, key: str) -> Iterator[None]:
    """Add the path of an invalid manifest to its error."""
    try:
        yield
    except (ValueError, RecursionError) as error:
        problem = in_one_line(error) if isinstance(error, ValidationError) else str(error)
        raise ArtifactError(
            f"{store.path(key)}/{MANIFEST} is damaged or of another version of headrace: {problem}"
        ) from error


def parse_manifest(raw: bytes) -> Manifest:
    """Parse a manifest file.

    Raises `ValueError` if it is damaged or has another format, `RecursionError` if it is nested too deeply.
    """
    values = json.loads(raw)
    plain = unseal(values) if isinstance(values, dict) else values
    if isinstance(plain, dict) and plain.get("format") != FORMAT:
        raise ValueError(
            f"it has format {plain.get('format')}, of headrace {plain.get('headrace')}; this version reads only format "
            f"{FORMAT}: use a new store, or that version of headrace"
        )
    return Manifest.model_validate(plain)


def _sealed(manifest: Manifest) -> bytes:
    return (json.dumps(seal(manifest.model_dump(mode="json")), indent=2, ensure_ascii=False) + "\n").encode()
