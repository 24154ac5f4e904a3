"""What `headrace list` and `headrace compare` print. Nothing in the store is changed."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.common.errors import StorageError
from trainer.common.formats import show, show_json
from trainer.common.transient import looking
from trainer.registry.listing import find_runs, list_runs
from trainer.store.storage import Store

if TYPE_CHECKING:
    from trainer.registry.compare_runs import Comparison


MOST = 26
"""Runs have letters, so that columns stay narrow and a chart's legend readable."""


@looking
def tell(url: str, names: list[str], page: Path | None = None, as_json: bool = False) -> None:
    """Print the comparison of some runs, or the list of all if none is named."""
    store = Store(url)
    store.require_there()
    if as_json:
        show_json(compare_for_programs(store, names, page) if names else find_runs(store))
    else:
        show(compare(store, names, page) if names else list_runs(store))


def compare(store: Store, names: list[str], page: Path | None = None) -> str:
    """The comparison as text for a terminal, and as a page if there is a path for it.

    Raises `RunError` for a run that does not exist, `StorageError` if the page cannot be written.
    """
    from trainer.registry.compare_runs import describe

    comparison = _compared(store, names, page)
    return describe(comparison) + (f"\npage  {page}\n" if page else "")


def compare_for_programs(store: Store, names: list[str], page: Path | None = None) -> dict[str, Any]:
    """The same as values: the runs, what they differ in, their curves and results, in sections as they are printed."""
    comparison = _compared(store, names, page)
    return {
        "runs": [
            {"letter": run.letter, "key": run.key, "kind": run.entry.name, "state": run.state}
            for run in comparison.runs
        ],
        "verdict": comparison.verdict,
        "differing": comparison.differing,
        "curves": comparison.curves,
        "results": comparison.results,
    }


def _compared(store: Store, names: list[str], page: Path | None) -> "Comparison":
    from trainer.registry.compare_runs import compare_runs  # not needed for the list, and takes half a second
    from trainer.registry.compared_runs import read_runs

    comparison = compare_runs(store, read_runs(store, names))
    if page is not None:
        _write(page, comparison)
    return comparison


def _write(page: Path, comparison: "Comparison") -> None:
    from trainer.registry.compare_runs import render

    try:
        page.write_bytes(render(comparison).encode(errors="replace"))
    except OSError as error:
        raise StorageError(
            f"cannot write {page}: {error.strerror}; name a file in a folder that can be written"
        ) from error
