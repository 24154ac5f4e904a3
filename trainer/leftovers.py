"""What killed processes left behind in a store, found and removed:

    python -m trainer.leftovers STORE [--older-than HOURS] [--remove]

Artifacts without a manifest (nothing reads those), uploads that were never completed (a bucket keeps and bills their parts,
and shows them nowhere), and staged files. What is young may still be at work and is left alone, and so is every run that a
living process holds; a set of shards is young while it is made, because it is marked when that begins. Without --remove nothing
is removed.
"""

import argparse
import re
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from trainer.errors import PipelineError
from trainer.lease import is_held
from trainer.manifest import MANIFEST
from trainer.outages import tell_failure
from trainer.private_folders import LOCK, STAGING
from trainer.storage import Store
from trainer.stored import Stored
from trainer.upkeep import describe, sum_up

ARTIFACT = re.compile(
    r"(?P<folder>(shards|tokenizers|encoded|predictions)/[^/]+|runs/[^/]+/(checkpoints/step-\d+|final))/(?P<file>.+)"
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


def find_leftovers(store: Store, older_than: timedelta = OLD) -> list[Leftover]:
    """What was last written to longer ago than this. Lists the whole store, once."""
    latest = datetime.now(UTC) - older_than
    found = [left for left in [*_without_manifest(store), *_uploads(store)] if left.modified < latest]
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


def _uploads(store: Store) -> Iterator[Leftover]:
    for upload in store.unfinished_uploads():
        yield Leftover("half an upload", upload.key, upload.size, upload.modified, upload.upload)


def _is_of_a_held_run(store: Store, key: str) -> bool:
    run = re.match(r"runs/[^/]+", key)
    return run is not None and is_held(store, run[0])


def main(arguments: list[str]) -> int:
    """List the leftovers, and remove them if that is asked for; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m trainer.leftovers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("store", help="a folder or a URL")
    parser.add_argument("--older-than", type=float, default=OLD / timedelta(hours=1), metavar="HOURS", help="default: 24")
    parser.add_argument("--remove", action="store_true", help="remove what is listed")
    parsed = parser.parse_args(arguments)
    try:
        store = Store(parsed.store)
        found = find_leftovers(store, timedelta(hours=parsed.older_than))
        if not found:  # half an upload may be all that there is
            store.require_there()
        for left in [*found]:
            gone = not parsed.remove or remove_leftover(store, left)
            if not gone:
                found.remove(left)
            print(describe(left.what, left.size, left.modified, left.key) + ("" if gone else " (in use again, kept)"))
    except PipelineError as error:
        return tell_failure(error)
    print(sum_up([left.size for left in found], parsed.remove, "leftover"))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
