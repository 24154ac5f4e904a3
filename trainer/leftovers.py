"""What killed processes left behind in a store, found and removed:

    python -m trainer.leftovers STORE [--older-than HOURS] [--remove] [--json]

Artifacts without a manifest (nothing reads those), uploads that were never completed (a bucket keeps and bills their
parts, and shows them nowhere), and staged files. What is young may still be at work and is left alone, and so is every
run that a living process holds; a set of shards is young while it is made, because it is marked when that begins.
Without --remove nothing is removed.
"""

import argparse
import sys
from collections.abc import Iterator
from datetime import timedelta

from trainer.common.errors import ConfigError, PipelineError
from trainer.common.formats import show_json
from trainer.common.outages import tell_failure
from trainer.registry.leftovers import OLD, Leftover, describe, find_leftovers, remove_leftover, sum_up
from trainer.store.storage import Store

LONGEST = 24 * 36500.0
"""Hours: as long as `headrace gc` may be told to wait."""


def main(arguments: list[str]) -> int:
    """Print what the command line asks for; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m trainer.leftovers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("store", help="a folder or a URL")
    parser.add_argument(
        "--older-than", type=float, default=OLD / timedelta(hours=1), metavar="HOURS", help="default: 24"
    )
    parser.add_argument("--remove", action="store_true", help="remove what is listed")
    parser.add_argument("--json", action="store_true", help="print it as JSON")
    parsed = parser.parse_args(arguments)
    return tell(parsed.store, parsed.older_than, parsed.remove, parsed.json)


def tell(url: str, older_than: float = OLD / timedelta(hours=1), remove: bool = False, as_json: bool = False) -> int:
    """Print the leftovers older than some hours, and remove them if that is asked for; returns the exit status."""
    try:
        if not abs(older_than) <= LONGEST:  # so written, it refuses nan too
            raise ConfigError(f"--older-than: expected a number of hours, at most {LONGEST:g}, found {older_than}")
        store = Store(url)
        found = find_leftovers(store, timedelta(hours=older_than))
        if not found:  # half an upload may be all that there is
            store.require_there()
        _show(_settle(store, found, remove, as_json), remove, as_json)
    except PipelineError as error:
        return tell_failure(error)
    return 0


def _settle(store: Store, found: list[Leftover], remove: bool, quiet: bool) -> Iterator[Leftover]:
    """Each leftover, once it is gone if it is to be removed; what is in use again is left out."""
    for left in found:
        gone = not remove or remove_leftover(store, left)
        if not quiet:
            print(describe(left.what, left.size, left.modified, left.key) + ("" if gone else " (in use again, kept)"))
        if gone:
            yield left


def _show(settled: Iterator[Leftover], removed: bool, as_json: bool) -> None:
    """Print all of them as JSON, or their sum; also what was found, or removed, before an error."""
    listed: list[Leftover] = []
    try:
        listed.extend(settled)
    finally:
        if as_json:
            show_json({"removed": removed, "found": listed})
        else:
            print(sum_up([left.size for left in listed], removed, "leftover"))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
