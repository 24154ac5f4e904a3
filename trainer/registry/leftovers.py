"""What killed processes left behind in a store, found and removed; and how that and garbage are told."""

import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from trainer.common.formats import plural, show_json
from trainer.records.lease import is_held
from trainer.store.local import Stored
from trainer.store.manifest import MANIFEST
from trainer.store.private_folders import LOCK, STAGING
from trainer.store.storage import Store

ARTIFACT = re.compile(
    r"(?P<folder>(shards|tokenizers|encoded|decisions|predictions|references)/[^/]+|runs/[^/]+/(checkpoints/step-\d+|final))/(?P<file>.+)"
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
    """What nothing reaches, and when it was last written to.

    `size` is what its removal frees: bytes that shard sets on a disk share count with the last of them.
    """

    what: str
    key: str
    size: int
    modified: datetime


Nouns = tuple[str, str]
LEFTOVERS: Nouns = ("leftover", "leftovers")
GARBAGE: Nouns = ("folder that nothing reaches", "folders that nothing reaches")


def find_leftovers(store: Store, older_than: timedelta = OLD) -> list[Leftover]:
    """What was last written to longer ago than this. Lists the whole store, once."""
    latest = datetime.now(UTC) - older_than
    uploads = (
        Leftover("half an upload", each.key, each.size, each.modified, each.upload)
        for each in store.unfinished_uploads()
    )
    found = [left for left in [*_without_manifest(store), *uploads] if left.modified < latest]
    return sorted((left for left in found if not _is_of_a_held_run(store, left.key)), key=lambda left: left.key)


def remove_leftover(store: Store, left: Leftover) -> bool:
    """Remove it, unless it was completed or taken up since it was found; returns whether it was removed."""
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
            size, modified = sum(file.size for file in files.values()), max(file.modified for file in files.values())
            yield Leftover("staged" if folder.startswith(STAGING) else "uncommitted", folder, size, modified)


def _is_of_a_held_run(store: Store, key: str) -> bool:
    run = re.match(r"runs/[^/]+", key)
    return run is not None and is_held(store, run[0])


def describe(found: Leftover | Garbage) -> str:
    """A line on one thing: its kind, its bytes, when it was last written to, and its key."""
    return f"{found.what:<16}{found.size / 1e6:>12,.1f} MB  {found.modified:%Y-%m-%d %H:%M} UTC  {found.key}"


def sum_up(found: Sequence[Leftover | Garbage], removed: bool, nouns: Nouns, how: str = "--remove") -> str:
    """A line on all of them: their number, their bytes, and what became of them, or `how` they are removed."""
    total = f"{plural(len(found), *nouns)}, {sum(each.size for each in found) / 1e6:,.1f} MB"
    return f"{total}: removed" if removed else f"{total}{f'; {how} removes them' if found else ''}"


def tell(
    found: Iterable[Leftover | Garbage], removed: bool, nouns: Nouns = GARBAGE, how: str = "--remove",
    as_json: bool = False, **beside: Any,
) -> None:  # fmt: skip
    """Print each thing as it is found, or removed, and the sum; or all of them as JSON, with what stands `beside`.

    Also what there was before an error.
    """
    listed: list[Leftover | Garbage] = []
    try:
        for each in found:
            listed.append(each)
            if not as_json:
                print(describe(each))
    finally:
        if as_json:
            show_json({"removed": removed, "found": listed, **beside})
        else:
            print(sum_up(listed, removed, nouns, how))
