"""Find and remove what killed processes left in a store; print leftovers and garbage."""

import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from trainer.common.display import plural, show, show_json, size
from trainer.common.errors import StorageError
from trainer.records.lease import is_held
from trainer.records.run_names import DATA_FOLDERS
from trainer.store.local import Stored
from trainer.store.manifest import MANIFEST
from trainer.store.private_folders import LOCK, STAGING
from trainer.store.storage import Store

log = logging.getLogger(__name__)


ARTIFACT = re.compile(
    rf"(?P<folder>({'|'.join((*DATA_FOLDERS, 'predictions'))})/[^/]+"
    r"|runs/[^/]+/(checkpoints/step-\d+|final))/(?P<file>.+)"
)
STAGED = re.compile(rf"(?P<folder>{re.escape(STAGING)}/[^/]+(?<!{re.escape(LOCK)}))(/(?P<file>.+))?")
OLD = timedelta(days=1)


class Leftover(NamedTuple):
    """Something that nothing reads; `upload` is the id of an upload that was never completed."""

    what: str
    key: str
    size: int
    modified: datetime
    upload: str | None = None


class Garbage(NamedTuple):
    """An unreferenced folder; `modified` is the time of the last write.

    `size` is the bytes that its removal frees: bytes that shard sets on disk share count with the last of them.
    """

    what: str
    key: str
    size: int
    modified: datetime


Nouns = tuple[str, str]
LEFTOVERS: Nouns = ("leftover", "leftovers")
GARBAGE: Nouns = ("unreferenced folder", "unreferenced folders")


def find_leftovers(store: Store, older_than: timedelta = OLD) -> list[Leftover]:
    """The leftovers last written to longer ago than this. Lists the whole store once.

    Warns if partial uploads cannot be listed, for which servers require permissions of their own.
    """
    latest, uploads = datetime.now(UTC) - older_than, list[Stored]()
    try:
        uploads = store.unfinished_uploads()
    except StorageError as error:
        if error.transient:
            raise
        log.warning(
            "%s; for S3, also s3:ListBucketMultipartUploads and s3:ListMultipartUploadParts; only other leftovers are "
            "found", error,
        )  # fmt: skip
    partial = (Leftover("partial upload", each.key, each.size, each.modified, each.upload) for each in uploads)
    found = [left for left in [*_without_manifest(store), *partial] if left.modified < latest]
    return sorted((left for left in found if not _is_of_a_held_run(store, left.key)), key=lambda left: left.key)


def remove_leftover(store: Store, left: Leftover) -> bool:
    """Remove a leftover, unless it was completed or is in use by now; returns whether it was removed."""
    if _is_of_a_held_run(store, left.key):
        return False
    if left.upload is not None:
        store.abort_upload(left.key, left.upload)
        return True
    if store.exists(f"{left.key}/{MANIFEST}"):
        return False
    store.delete(left.key)
    return True


def _without_manifest(store: Store) -> Iterator[Leftover]:
    folders: dict[str, dict[str, Stored]] = {}
    for entry in store.walk():
        place = ARTIFACT.fullmatch(entry.key) or STAGED.fullmatch(entry.key)
        if place is not None:
            folders.setdefault(place["folder"], {})[place["file"] or ""] = entry
    for folder, files in folders.items():
        if MANIFEST not in files:
            held, modified = sum(file.size for file in files.values()), max(file.modified for file in files.values())
            yield Leftover("staged" if folder.startswith(STAGING) else "uncommitted", folder, held, modified)


def _is_of_a_held_run(store: Store, key: str) -> bool:
    run = re.match(r"runs/[^/]+", key)
    return run is not None and is_held(store, run[0])


def describe(found: Leftover | Garbage) -> str:
    """One line: kind, size, time of the last write, and key."""
    return f"{found.what:<16}{size(found.size):>12}  {found.modified:%Y-%m-%d %H:%M} UTC  {found.key}"


def sum_up(found: Sequence[Leftover | Garbage], removed: bool, nouns: Nouns, how: str) -> str:
    """One line: number, total size, and whether they were removed, or `how` to remove them."""
    total = f"{plural(len(found), *nouns)}, {size(sum(each.size for each in found))}"
    return f"{total}: removed" if removed else f"{total}{f'; {how} removes them' if found else ''}"


def print_items(
    found: Iterable[Leftover | Garbage], removed: bool, nouns: Nouns = GARBAGE, as_json: bool = False, **beside: Any
) -> None:
    """Print each item as it is found or removed, and the total; or all as JSON, together with `beside`.

    After an error, the items before it are printed too.
    """
    listed: list[Leftover | Garbage] = []
    try:
        for each in found:
            listed.append(each)
            if not as_json:
                show(f"{describe(each)}\n")
    finally:
        if as_json:
            show_json({"removed": removed, "found": listed, **beside})
        else:
            show(f"{sum_up(listed, removed, nouns, '--remove')}\n")
