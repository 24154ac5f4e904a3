"""Manifests: the last file written of every artifact. It records the artifact's inputs and lists its files.

A folder without a manifest counts as missing. The fingerprint of a step's result (records/steps.py) is computed from
its recipe and the contents of its inputs; that of a checkpoint or final model is its run's.
"""

import hashlib
import json
import logging
import posixpath
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError

from trainer import __version__
from trainer.common.errors import ArtifactError, PipelineError, WrongContent, in_one_line
from trainer.store.checked_files import digest_stream
from trainer.store.details import DATA_KINDS, require_details
from trainer.store.names import CARD, CHECKPOINT_KIND, FINAL_KIND, Count, Digest, FileName, Key
from trainer.store.storage import Store

log = logging.getLogger(__name__)

MANIFEST = "manifest.json"
REPAIR = "; prepare the data again to rebuild it from the raw files"
"""Remedy for a damaged file of prepared data. Preparation checks every file, and reads all files of a damaged set."""

FORMAT = 2
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
    """Return size and SHA-256 of all files of a staged folder."""
    return [digest_file(path) for path in folder.iterdir()]


def put_published(store: Store, folder: Path, key: str, manifest: Manifest) -> None:
    """Publish a staged folder with the manifest that lists its files; the manifest is written last.

    An existing manifest with the same files, for example of an attempt whose answer was lost, is not removed first: a
    delayed, repeated delete request could otherwise arrive after the new manifest.
    """
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


def find_damage(store: Store, key: str, manifest: Manifest, depth: Depth = "all") -> dict[str, str]:
    """Check the artifact's files; return the problems by file name."""
    records = list(manifest.files)
    if depth == "sizes":  # one listing covers most files; the others are queried one by one
        listed = store.sizes(key)
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


def fetch_made(store: Store, key: str, name: str, sha256: str, anew: bool = False) -> Path:
    """Return a local path of a file of prepared data, like `Store.fetch`; raise `ArtifactError` with the remedy if it
    is damaged.
    """
    with _repaired_by_preparing(store, f"{key}/{name}"):
        return store.fetch(f"{key}/{name}", sha256, anew)


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


def _sealed(manifest: Manifest) -> bytes:
    return (json.dumps(seal(manifest.model_dump(mode="json")), indent=2, ensure_ascii=False) + "\n").encode()


def _damage(store: Store, key: str, record: FileRecord, depth: Depth, beyond: bool) -> str | None:
    try:
        # The size of a remote file that is fetched anyway is not queried, to save a request.
        size = record.size if depth != "sizes" and not store.local else store.size(key)
        if size != record.size:
            return f"has {size} bytes, its manifest says {record.size}"
        if depth != "sizes":
            store.fetch(key, record.sha256, anew=depth == "all", beyond=beyond)
            store.release(key)
    except FileNotFoundError:
        return "is missing"
    except WrongContent as error:
        return str(error).removeprefix(f"{store.path(key)} ")
    return None
