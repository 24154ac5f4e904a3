"""What killed processes left behind in a store, found and removed:

    python -m trainer.leftovers STORE [--older-than HOURS] [--remove] [--json]

Artifacts without a manifest (nothing reads those), uploads that were never completed (a bucket keeps and bills their parts,
and shows them nowhere), and staged files. What is young may still be at work and is left alone, and so is every run that a
living process holds; a set of shards is young while it is made, because it is marked when that begins. Without --remove nothing
is removed.
"""

import argparse
import sys
from datetime import timedelta

from trainer.common.errors import PipelineError
from trainer.common.outages import tell_failure
from trainer.common.plain_values import show_json
from trainer.store.storage import Store
from trainer.upkeep.leftovers import OLD, find_leftovers, remove_leftover
from trainer.upkeep.telling import describe, sum_up


def main(arguments: list[str]) -> int:
    """Print what the command line asks for; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m trainer.leftovers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("store", help="a folder or a URL")
    parser.add_argument("--older-than", type=float, default=OLD / timedelta(hours=1), metavar="HOURS", help="default: 24")
    parser.add_argument("--remove", action="store_true", help="remove what is listed")
    parser.add_argument("--json", action="store_true", help="print it as JSON")
    parsed = parser.parse_args(arguments)
    return tell(parsed.store, parsed.older_than, parsed.remove, parsed.json)


def tell(url: str, older_than: float = OLD / timedelta(hours=1), remove: bool = False, as_json: bool = False) -> int:
    """Print the leftovers older than some hours, and remove them if that is asked for; returns the exit status."""
    try:
        store = Store(url)
        found = find_leftovers(store, timedelta(hours=older_than))
        if not found:  # half an upload may be all that there is
            store.require_there()
        for left in [*found]:
            gone = not remove or remove_leftover(store, left)
            if not gone:
                found.remove(left)
            if not as_json:
                print(describe(left.what, left.size, left.modified, left.key) + ("" if gone else " (in use again, kept)"))
    except PipelineError as error:
        return tell_failure(error)
    if as_json:
        show_json({"removed": remove, "found": found})
    else:
        print(sum_up([left.size for left in found], remove, "leftover"))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
