"""What nothing in a store reaches any more, found and removed:

    python -m trainer.garbage STORE [--older-than DAYS] [--runs-older-than DAYS] [--remove]
    python -m trainer.garbage STORE --pin RUN_OR_ARTIFACT        (and --unpin)

Runs, champions with their history, and pins stay, with everything that they were made from, and so does for some days what a
preparation has found to be made already, and a run that waits for a person's approval. Tokenizers, shard sets and encoded
sets that none of them reaches go, but not the young, whose run is still to come, nor the newest set of each corpus, which the
next preparation takes unchanged shards from. While a set of shards is in the making, or was left half made, all sets of its
corpus and all tokenizers stay: `python -m trainer.leftovers` removes what killed processes left.

Runs go only where --runs-older-than is given: those that were not written to for so long, and that no process holds. Without
--remove nothing is removed.
"""

import argparse
import sys

from trainer.common.errors import PipelineError
from trainer.common.outages import tell_failure
from trainer.config.files import validate_job
from trainer.config.jobs import GarbageJob
from trainer.store.storage import Store
from trainer.upkeep.garbage import collect, tell
from trainer.upkeep.pins import pin, pinned, unpin


def main(arguments: list[str]) -> int:
    """List what nothing reaches, and remove it if that is asked for; or change a pin. Returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m trainer.garbage", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("store", help="a folder or a URL")
    parser.add_argument("--older-than", type=float, metavar="DAYS", help="default: 7")
    parser.add_argument("--runs-older-than", type=float, metavar="DAYS", help="remove runs too; default: none, however old")
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--remove", action="store_true", help="remove what is listed")
    action.add_argument("--pin", metavar="KEY", help="keep a run, by its name, or an artifact, such as shards/NAME")
    action.add_argument("--unpin", metavar="KEY", help="keep it no longer")
    parsed = parser.parse_args(arguments)
    ages = {"older_than_days": parsed.older_than, "runs_older_than_days": parsed.runs_older_than}
    values = {"store": parsed.store, "remove": parsed.remove, **{name: age for name, age in ages.items() if age is not None}}
    try:
        store = Store(parsed.store)
        store.require_there()
        if parsed.pin:
            print(f"{pin(store, parsed.pin)} is pinned")
        elif parsed.unpin:
            print(f"{unpin(store, parsed.unpin)} is not pinned any more")
        else:
            tell(collect(validate_job(GarbageJob, values, "of the command line")), parsed.remove)
        if names := sorted(pinned(store)):
            print(f"pinned: {', '.join(names)}")
    except PipelineError as error:
        return tell_failure(error)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
