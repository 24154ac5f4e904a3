"""Runs side by side, and a list of the runs of a store:

    python -m trainer.compare STORE RUN RUN [RUN ...] [--html FILE]
    python -m trainer.compare STORE --list

What differs in configuration, data, tokenizer, model and environment, the curves, and the results with the best one marked.
Runs may be of either kind, and need not be finished. Nothing in the store is changed.
"""

import argparse
import sys
from pathlib import Path

from trainer.common.errors import PipelineError, StorageError
from trainer.common.outages import tell_failure
from trainer.common.showing import show
from trainer.comparison.listing import list_runs
from trainer.store.storage import Store

MOST = 26
"""Runs have letters, so that columns stay narrow and a chart's legend readable."""


def main(arguments: list[str]) -> int:
    """Print the comparison or the list; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m trainer.compare", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("store", help="a folder or a URL")
    parser.add_argument("runs", nargs="*", metavar="RUN", help="names of runs: the others are compared with the first")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write the comparison as a page, too")
    parser.add_argument("--list", action="store_true", help="a line for each run of the store, newest first")
    parsed = parser.parse_args(arguments)
    if parsed.list and (parsed.runs or parsed.html):
        parser.error("--list takes no runs and no --html")
    if not parsed.list and not 2 <= len(parsed.runs) <= MOST:
        parser.error(f"name 2 to {MOST} runs, or give --list to see which there are")
    try:
        store = Store(parsed.store)
        store.require_there()
        text = list_runs(store) if parsed.list else compare(store, parsed.runs, parsed.html)
    except PipelineError as error:
        return tell_failure(error)
    show(text)
    return 0


def compare(store: Store, names: list[str], page: Path | None = None) -> str:
    """The comparison as text for a terminal, and as a page if there is a path for it.

    Raises `RunError` for a run that does not exist, `StorageError` if the page cannot be written.
    """
    from trainer.comparison.account import compare_runs  # all that follows is not needed for the list, and takes half a second
    from trainer.comparison.runs import read_runs
    from trainer.comparison.terminal import describe

    comparison = compare_runs(store, read_runs(store, names))
    text = describe(comparison)
    if page is None:
        return text
    from trainer.comparison.page import render

    try:
        page.write_bytes(render(comparison).encode(errors="replace"))
    except OSError as error:
        raise StorageError(f"cannot write {page}: {error.strerror}; name a file in a folder that can be written") from error
    return f"{text}\npage  {page}\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
