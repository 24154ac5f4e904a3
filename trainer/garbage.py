"""What nothing in a store reaches any more, found and removed:

    python -m trainer.garbage STORE [--older-than DAYS] [--runs-older-than DAYS] [--remove] [--json]
    python -m trainer.garbage STORE --pin RUN_OR_ARTIFACT        (and --unpin)

Runs, champions with their history, and pins stay, with everything that they were made from, and so does for some days
what a preparation has found to be made already, and a run that waits for a person's approval. Tokenizers, shard sets
and encoded sets that none of them reaches go, but not the young, whose run is still to come, nor the newest set of each
corpus, which the next preparation takes unchanged shards from. While a set of shards is in the making, or was left half
made, all sets of its corpus and all tokenizers stay: `headrace leftovers` removes what killed processes left. Decisions
about raw text go as these do, and with them what was measured for them alone.

Runs go only where --runs-older-than is given: those that were not written to for so long, and that no process holds.
Without --remove nothing is removed.
"""

import argparse
import sys
from collections.abc import Iterable

from trainer.common.errors import PipelineError
from trainer.common.formats import show_json
from trainer.common.outages import tell_failure
from trainer.config.files import validate_job
from trainer.config.jobs import GarbageJob
from trainer.registry.garbage import Garbage, collect, tell
from trainer.registry.pins import pin, pinned, unpin
from trainer.store.storage import Store


def main(arguments: list[str]) -> int:
    """List what nothing reaches, and remove it if that is asked for; or change a pin. Returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m trainer.garbage", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("store", help="a folder or a URL")
    parser.add_argument("--older-than", type=float, metavar="DAYS", help="default: 7")
    parser.add_argument(
        "--runs-older-than", type=float, metavar="DAYS", help="remove runs too; default: none, however old"
    )
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--remove", action="store_true", help="remove what is listed")
    action.add_argument("--pin", metavar="KEY", help="keep a run, by its name, or an artifact, such as shards/NAME")
    action.add_argument("--unpin", metavar="KEY", help="keep it no longer")
    parser.add_argument("--json", action="store_true", help="print it as JSON")
    parsed = parser.parse_args(arguments)
    if key := parsed.pin or parsed.unpin:
        return change_pin(parsed.store, key, bool(parsed.unpin), parsed.json)
    return tell_garbage(parsed.store, parsed.older_than, parsed.runs_older_than, parsed.remove, parsed.json)


def tell_garbage(
    url: str, older_than: float | None, runs_older_than: float | None, remove: bool, as_json: bool = False
) -> int:
    """Print what nothing reaches, of ages in days, and what is pinned; returns the exit status."""
    ages = {"older_than_days": older_than, "runs_older_than_days": runs_older_than}
    values = {"store": url, "remove": remove, **{name: age for name, age in ages.items() if age is not None}}
    try:
        store = Store(url)
        store.require_there()
        found = collect(validate_job(GarbageJob, values, "of the command line"))
        if as_json:
            _show_garbage(store, found, remove)
        else:
            tell(found, remove)
            _tell_pins(store)
    except PipelineError as error:
        return tell_failure(error)
    return 0


def change_pin(url: str, key: str | None, removed: bool, as_json: bool = False) -> int:
    """Pin a run or an artifact, or take its pin away, if one is named; then print all pins. Returns the exit status."""
    try:
        store = Store(url)
        store.require_there()
        if key is not None:
            changed = unpin(store, key) if removed else pin(store, key)
            if not as_json:
                print(f"{changed} is {'not pinned any more' if removed else 'pinned'}")
        if as_json:
            show_json({"pinned": sorted(pinned(store))})
        else:
            _tell_pins(store)
    except PipelineError as error:
        return tell_failure(error)
    return 0


def _show_garbage(store: Store, found: Iterable[Garbage], removed: bool) -> None:
    """Print it as JSON, also what was found, or removed, before an error."""
    pins = sorted(pinned(store))  # read first: after an error the store may be away
    listed: list[Garbage] = []
    try:
        listed.extend(found)
    finally:
        show_json({"removed": removed, "found": listed, "pinned": pins})


def _tell_pins(store: Store) -> None:
    if names := sorted(pinned(store)):
        print(f"pinned: {', '.join(names)}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
