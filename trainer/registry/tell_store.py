"""What `headrace gc`, `headrace pin` and `headrace leftovers` print."""

from collections.abc import Iterable, Iterator
from datetime import timedelta

from trainer.common.errors import ConfigError
from trainer.common.formats import show_json
from trainer.common.transient import looking
from trainer.config.files import validate_job
from trainer.config.jobs import GarbageJob
from trainer.registry.garbage import Garbage, collect, tell
from trainer.registry.leftovers import OLD, Leftover, describe, find_leftovers, remove_leftover, sum_up
from trainer.registry.pins import pin, pinned, unpin
from trainer.store.storage import Store


@looking
def tell_garbage(
    url: str, older_than: float | None, runs_older_than: float | None, remove: bool, as_json: bool = False
) -> None:
    """Print what nothing reaches, of ages in days, and what is pinned."""
    ages = {"older_than_days": older_than, "runs_older_than_days": runs_older_than}
    values = {"store": url, "remove": remove, **{name: age for name, age in ages.items() if age is not None}}
    store = Store(url)
    store.require_there()
    found = collect(validate_job(GarbageJob, values, "of the command line"))
    if as_json:
        _show_garbage(store, found, remove)
    else:
        tell(found, remove)
        _tell_pins(store)


@looking
def change_pin(url: str, key: str | None, removed: bool, as_json: bool = False) -> None:
    """Pin a run or an artifact, or take its pin away, if one is named; then print all pins."""
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


LONGEST = 24 * 36500.0
"""Hours: as long as `headrace gc` may be told to wait."""


@looking
def tell_leftovers(
    url: str, older_than: float = OLD / timedelta(hours=1), remove: bool = False, as_json: bool = False
) -> None:
    """Print the leftovers older than some hours, and remove them if that is asked for."""
    if not abs(older_than) <= LONGEST:  # so written, it refuses nan too
        raise ConfigError(f"--older-than: expected a number of hours, at most {LONGEST:g}, found {older_than}")
    store = Store(url)
    found = find_leftovers(store, timedelta(hours=older_than))
    if not found:  # half an upload may be all that there is
        store.require_there()
    _show(_settle(store, found, remove, as_json), remove, as_json)


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
