"""Manifests: the last file written of every artifact. It says what the artifact was made from, and lists its files.

A folder without its manifest does not exist. The fingerprint of what a step made (records/steps.py) is that of its
recipe and of the contents of its inputs; of a checkpoint or a final model, that of its run.
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
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError

from trainer import __version__
from trainer.common.errors import ArtifactError, WrongContent, in_one_line
from trainer.store.checked_files import digest_stream
from trainer.store.details import require_details
from trainer.store.names import CARD, CHECKPOINT_KIND, FINAL_KIND, Count, Digest, FileName, Key
from trainer.store.storage import Store

log = logging.getLogger(__name__)

MANIFEST = "manifest.json"
REPAIR = "; prepare the data again: it is made anew from the raw files"
"""What to do about a damaged file of what was prepared: a preparation looks at every file, and reads those of a set in
which damage was found."""

FORMAT = 2
NAMED_BY_FINGERPRINT = ("tokenizer", "shards", "encoded", "decisions", "reference")
"""Kinds whose keys end with what they were made from."""

CONTENT_NAMED = re.compile(r".+-[0-9a-f]{16}\.[a-z]+")
"""Names of files that end with a digest of what they hold: those of a checkpoint that several ranks write."""

REPLACED = (".safetensors", ".safetensors.index.json", "state.json")
"""How the names end of the files whose place such ones take."""

LOADED_WHOLE = (CHECKPOINT_KIND, FINAL_KIND)
"""Kinds whose files are fetched all at once, to be loaded: they must be had whatever the bound of this machine's cache.
"""


def _time(text: str) -> str:
    if datetime.fromisoformat(text).tzinfo is None:
        raise ValueError(f"{text!r} is a time without its zone")
    return text


_canonical = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode

Time = Annotated[str, AfterValidator(_time)]
"""When something was, in ISO 8601, with its zone."""


class FileRecord(BaseModel):
    """One file of an artifact."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: FileName
    size: Count
    sha256: Digest


class Input(BaseModel):
    """An artifact, or a run, that another one was made from: its key, and the digest of its content then."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    key: Key
    content: str


class Manifest(BaseModel):
    """What an artifact was made from, and what it consists of. Figures that are no numbers are written as they are.

    `recipe` is every setting that its bytes depend on, `inputs` is by role what it was made from; those named in `told`
    are recorded for people and for lineage, and are no part of its fingerprint. `notes` are files that say how it was
    made: its `content` is that of the others.
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
        """A digest of what all files hold but the notes: equal of artifacts that give what is made from them the
        same.
        """
        return content_of(self.files, self.notes)

    def digests(self) -> dict[str, str]:
        """The SHA-256 of each file, by name."""
        return {record.name: record.sha256 for record in self.files}

    def size(self) -> int:
        """Bytes of all files."""
        return sum(record.size for record in self.files)


class ArtifactRef(BaseModel):
    """What tasks hand to each other: where an artifact is and what it holds, never its data.

    `fingerprint` is what names a run that is made from it: of an encoded set, that of all but its test split.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    key: Key
    fingerprint: str
    size: Count
    content: str = ""
    reused: bool = False

    def as_input(self) -> Input:
        """What is recorded of it where something is made from it."""
        return Input(key=self.key, content=self.content)


def content_of(files: Iterable[FileRecord], notes: Iterable[str] = ()) -> str:
    """The digest of files, but for notes."""
    left_out = set(notes)
    return fingerprint({record.name: record.sha256 for record in files if record.name not in left_out})


def name_of(recipe: Mapping[str, Any], inputs: Mapping[str, Input], told: Iterable[str] = ()) -> str:
    """The fingerprint of what is made by a recipe from the contents of some inputs, but for what is only told."""
    left_out = set(told)
    settings = {name: value for name, value in recipe.items() if name not in left_out}
    return fingerprint([settings, {role: each.content for role, each in inputs.items() if role not in left_out}])


def fingerprint(value: Any) -> str:
    """A 16-digit name of a JSON-like value: equal values, and only they, have equal names."""
    return hashlib.sha256(_canonical(value).encode()).hexdigest()[:16]


def seal(values: dict[str, Any], place: str | None = None) -> dict[str, Any]:
    """The values with a checksum of them, for a JSON file that no other file lists; `place` is where only they may
    stand.
    """
    return {**values, "checksum": _checksum(values, place)}


def unseal(values: dict[str, Any], place: str | None = None) -> dict[str, Any]:
    """The values without their checksum. Raises `ValueError` if there is none, or it does not match them or the
    place.
    """
    rest = {key: value for key, value in values.items() if key != "checksum"}
    if "checksum" not in values:
        raise ValueError("it has no checksum: another program wrote it, or another version of headrace")
    if values["checksum"] != _checksum(rest, place):
        other = "" if place is None else ", or is of another place"
        raise ValueError(f"it does not match its own checksum: it was changed{other}")
    return rest


def _checksum(values: dict[str, Any], place: str | None) -> str:
    return fingerprint(values if place is None else [posixpath.normpath(place), values])


def digest_file(path: Path, name: str | None = None) -> FileRecord:
    """A file's size and SHA-256."""
    with open(path, "rb") as file:
        sha256 = digest_stream(file)
        return FileRecord(name=name or path.name, size=file.tell(), sha256=sha256)


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
    require_details(kind, details, {})
    manifest = make_manifest(kind, name, digest_folder(folder), details)
    put_published(store, folder, key, manifest)
    return manifest


def digest_folder(folder: Path) -> list[FileRecord]:
    """Size and SHA-256 of all files of a staged folder."""
    return [digest_file(path) for path in folder.iterdir()]


def put_published(store: Store, folder: Path, key: str, manifest: Manifest) -> None:
    """Publish a staged folder with the manifest that lists its files, which appears last.

    One that lists the same, as that of an attempt whose answer was lost, is not removed before: a request to remove it
    that is late, and sent again, would arrive after the new one.
    """
    (folder / MANIFEST).write_bytes(_sealed(manifest))
    store.put_folder(folder, key, last=MANIFEST, same=store.local is None and _lists_the_same(store, key, manifest))


def _lists_the_same(store: Store, key: str, manifest: Manifest) -> bool:
    with suppress(ValueError, RecursionError):
        raw = store.find_bytes(f"{key}/{MANIFEST}")
        return raw is not None and parse_manifest(raw).files == manifest.files
    return False


def write_manifest(store: Store, key: str, manifest: Manifest) -> None:
    """Commit an artifact whose files are already in place."""
    store.write_bytes(f"{key}/{MANIFEST}", _sealed(manifest))


def read_manifest(store: Store, key: str, kind: str) -> Manifest | None:
    """The manifest of the artifact under a key, or None if there is none.

    Raises `ArtifactError` if it is damaged, of another kind or format, or of another artifact.
    """
    raw = store.find_bytes(f"{key}/{MANIFEST}")
    if raw is None:
        return None
    with _told(store, key):
        manifest = parse_manifest(raw)
    if manifest.kind != kind:
        raise ArtifactError(f"{store.path(key)} holds {manifest.kind!r}; expected {kind!r}")
    named = not manifest.recipe or manifest.fingerprint == name_of(manifest.recipe, manifest.inputs, manifest.told)
    if kind in NAMED_BY_FINGERPRINT and not (named and key.endswith(f"-{manifest.fingerprint}")):
        raise ArtifactError(
            f"{store.path(key)}/{MANIFEST} is that of another {kind}, with the fingerprint {manifest.fingerprint}: put "
            "back the folder's own, or delete the folder to have it made anew"
        )
    with _told(store, key):
        require_details(kind, manifest.details, manifest.recipe)
    return manifest


def recall_manifest(store: Store, key: str, kind: str) -> Manifest | None:
    """The manifest of what can always be made anew: a damaged one counts as none, with a warning."""
    try:
        return read_manifest(store, key, kind)
    except ArtifactError as error:
        log.warning("%s: it is to be made anew", error)
        return None


@contextmanager
def _told(store: Store, key: str) -> Iterator[None]:
    """Say of a manifest that cannot be one where it is."""
    try:
        yield
    except (ValueError, RecursionError) as error:
        problem = in_one_line(error) if isinstance(error, ValidationError) else str(error)
        raise ArtifactError(
            f"{store.path(key)}/{MANIFEST} is damaged or of another version of headrace: {problem}"
        ) from error


def parse_manifest(raw: bytes) -> Manifest:
    """The manifest that a file holds.

    Raises `ValueError` if it is damaged or of another format, `RecursionError` if it is nested too deeply.
    """
    values = json.loads(raw)
    plain = unseal(values) if isinstance(values, dict) else values
    if isinstance(plain, dict) and plain.get("format") != FORMAT:
        raise ValueError(
            f"it has format {plain.get('format')}, of headrace {plain.get('headrace')}, and this version reads format "
            f"{FORMAT} alone: use another store, in which all is made anew, or the version of before"
        )
    return Manifest.model_validate(plain)


def listed_names(folder: Path) -> set[str] | None:
    """The names of the files that the manifest in a local folder lists; None if there is none that can be read."""
    try:
        return set(parse_manifest((folder / MANIFEST).read_bytes()).digests())
    except (OSError, ValueError, RecursionError):
        return None


def named_by_content(name: str, sha256: str) -> str:
    """A file's name with a digest of what it holds before its last suffix."""
    stem, _, suffix = name.rpartition(".")
    return f"{stem}-{sha256[:16]}.{suffix}"


def find_damage(
    store: Store,
    key: str,
    manifest: Manifest,
    content: bool = True,
    anew: bool = True,
) -> dict[str, str]:
    """Read the artifact's files again; return what is wrong by file name.

    What was compared before is compared `anew`, or only if it has changed since. Without `content`, files are only
    looked for, with their sizes: enough where content is compared when it is fetched or read.
    """
    records = list(manifest.files)
    if not content:  # one listing tells the most of them; of the others, each is asked for
        listed = store.sizes(key)
        records = [record for record in records if listed.get(record.name) != record.size]
    beyond = manifest.kind in LOADED_WHOLE
    with ThreadPoolExecutor() as pool:
        found = pool.map(lambda record: _damage(store, f"{key}/{record.name}", record, content, anew, beyond), records)
        return {record.name: damage for record, damage in zip(records, found, strict=True) if damage}


def fetch_artifact(store: Store, key: str, kind: str) -> Path:
    """A local folder with the artifact's files: its own folder, or verified copies. Raises `ArtifactError` if there is
    none.
    """
    manifest = read_manifest(store, key, kind)
    if manifest is None:
        raise ArtifactError(f"{store.path(key)} holds no published {kind}")
    return fetch_files(store, key, manifest)


def fetch_files(store: Store, key: str, manifest: Manifest, wanted: Callable[[str], bool] = lambda name: True) -> Path:
    """A local folder with the files that an artifact's manifest lists, or of a remote one, with those that are wanted
    by name.

    Raises `ArtifactError` if a local one holds others: libraries that load the folder would take them for a part of it.
    What is left of a save that was broken off, or was replaced, is no such file where parts are loaded: `listed_names`
    chooses them.
    """
    if store.local is not None:
        in_parts = any(map(CONTENT_NAMED.fullmatch, manifest.digests()))
        for name in store.names(key):
            left = CONTENT_NAMED.fullmatch(name) or (in_parts and name.endswith(REPLACED))
            if name not in (MANIFEST, CARD, *manifest.digests()) and not name.startswith(".") and not left:
                raise ArtifactError(
                    f"{store.path(key)}/{name} is not listed in the {MANIFEST} beside it; move it elsewhere"
                )
    return store.fetch_folder(key, {name: sha256 for name, sha256 in manifest.digests().items() if wanted(name)})


def require_intact(
    store: Store, key: str, manifest: Manifest, remedy: str = "", content: bool = True, anew: bool = False
) -> None:
    """Raise `ArtifactError` naming the first damaged file, if any, of those that `find_damage` finds."""
    for name, damage in find_damage(store, key, manifest, content=content, anew=anew).items():
        raise ArtifactError(f"{store.path(key)}/{name} {damage}{remedy}")


def fetch_made(store: Store, key: str, name: str, sha256: str, check: bool = False) -> Path:
    """A local path of a file that was made from raw files. Raises `ArtifactError`, with what repairs it, if it is
    damaged.

    `check` looks at it anew, as `Store.fetch` does.
    """
    with _repaired_by_preparing(store, f"{key}/{name}"):
        return store.fetch(f"{key}/{name}", sha256, check)


def locate_made(store: Store, key: str, record: FileRecord) -> Path:
    """The same for who compares what it reads by itself, as `Store.locate` does."""
    with _repaired_by_preparing(store, f"{key}/{record.name}"):
        return store.locate(f"{key}/{record.name}", record.sha256)


def read_made(store: Store, key: str, record: FileRecord) -> bytes:
    """The bytes of such a file, a small one. Raises `ArtifactError`, with what repairs it, if it is damaged."""
    with _repaired_by_preparing(store, f"{key}/{record.name}"):
        raw = store.read_bytes(f"{key}/{record.name}")
        if hashlib.sha256(raw).hexdigest() != record.sha256:
            raise WrongContent(f"{store.path(f'{key}/{record.name}')} does not match its checksum")
    return raw


@contextmanager
def _repaired_by_preparing(store: Store, key: str) -> Iterator[None]:
    """Say of a file that is missing or damaged what repairs it."""
    try:
        yield
    except FileNotFoundError as error:
        raise ArtifactError(f"{store.path(key)} is missing{REPAIR}") from error
    except WrongContent as error:
        raise ArtifactError(f"{error}{REPAIR}") from error


def _sealed(manifest: Manifest) -> bytes:
    return (json.dumps(seal(manifest.model_dump(mode="json")), indent=2, ensure_ascii=False) + "\n").encode()


def _damage(store: Store, key: str, record: FileRecord, content: bool, anew: bool, beyond: bool) -> str | None:
    try:
        # A remote file that is fetched is not asked for its size as well: each question is a request.
        size = record.size if content and not store.local else store.size(key)
        if size != record.size:
            return f"has {size} bytes, its manifest says {record.size}"
        if content:
            store.fetch(key, record.sha256, check=anew, beyond=beyond)
            store.release(key)
    except FileNotFoundError:
        return "is missing"
    except WrongContent as error:
        return str(error).removeprefix(f"{store.path(key)} ")
    return None
