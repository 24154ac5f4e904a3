"""The records and logs of a run, readable without the libraries that wrote them."""

import logging
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

from trainer.common.errors import ArtifactError, StorageError
from trainer.common.formats import plural
from trainer.common.progress import emit
from trainer.records.sealed import read_pointer, sealed_number, unseal_line
from trainer.records.shapes import require_record
from trainer.store.manifest import MANIFEST
from trainer.store.names import FINAL, LAST, LOGS, METRICS
from trainer.store.storage import Store

log = logging.getLogger(__name__)


ENDED = "end"
"""The kind of the last record of a run that was trained to its end."""

SCHEDULE = "schedule"
"""The kind of the record of the learning rates that a run plans: its `rates` are pairs of a step and the rate after it.
"""

NAMED = 5
"""Damaged and missing lines that are named."""


def read_records(store: Store, run: str) -> list[dict[str, Any]]:
    """All intact records of a run, in order; damaged and missing ones are warned of."""
    try:
        content = store.read_bytes(f"{run}/{METRICS}")
    except FileNotFoundError:
        content = b""
    lines = intact_lines(store, run, content)
    records = [record for line in lines.values() if (record := open_line(store, run, line)) is not None]
    if not records or records[-1]["kind"] != ENDED:
        _tell_cut(store, run, max((record["step"] for record in records), default=0))
    return records


def _tell_cut(store: Store, run: str, last: int) -> None:
    """Warn of records that end with a step before the end of a run that is finished, or before a step that is saved."""
    place = store.path(f"{run}/{METRICS}")
    if store.exists(f"{run}/{FINAL}/{MANIFEST}"):
        log.warning(
            "%s ends with step %d, before the end of its run, which is finished: records are missing", place, last
        )
        return
    with suppress(ArtifactError):  # a damaged pointer is told of by who goes where it leads
        pointer = read_pointer(store, f"{run}/{LAST}")
        if pointer is not None and pointer.step > last:
            log.warning(
                "%s ends with step %d, before step %d, which is saved: records are missing", place, last, pointer.step
            )


def open_line(store: Store, run: str, line: bytes) -> dict[str, Any] | None:
    """What an intact line says; None, with a warning, if that is none of the records that are written."""
    record = unseal_line(line)
    try:
        require_record(record)
    except ValueError as error:
        log.warning("%s: a record is left out, as it cannot be one: %s", store.path(f"{run}/{METRICS}"), error)
        return None
    return record


def intact_lines(store: Store, run: str, content: bytes) -> dict[int, bytes]:
    """The lines of a run's records that match their checksums, without their ends, by the numbers that were written
    with them.

    They are in the order of those numbers; of two with the same number the later one counts. What is damaged is told of
    by its place in the file, what is missing by the number of the record after it. A last line that a kill or a power
    loss cut short is left out without a word.
    """
    key = f"{run}/{METRICS}"
    *lines, rest = content.split(b"\n")
    lines += [
        last for last in (rest, rest[:-1]) if sealed_number(key, last)
    ]  # only its end is missing, or another character
    numbers = [sealed_number(key, line) for line in lines]
    if damaged := [str(place) for place, number in enumerate(numbers, start=1) if number is None]:
        log.warning(
            "%s: %s left out, as not matching the checksum: %s",
            store.path(key), plural(len(damaged), "record"), _name("line", damaged),
        )  # fmt: skip
    _tell_missing(store.path(key), numbers)
    found = {number: line for number, line in zip(numbers, lines, strict=True) if number is not None}
    if others := {number for number, line in zip(numbers, lines, strict=True) if number and line != found[number]}:
        log.warning(
            "%s: %s left out, as there is another of the same number",
            store.path(key),
            _name("record", [str(each) for each in sorted(others)]),
        )
    return dict(sorted(found.items()))


def _tell_missing(place: str, numbers: list[int | None]) -> None:
    """Warn of gaps between the numbers of lines that are larger than the damaged lines in them, None, explain."""
    damaged_after: Counter[int] = Counter()
    before = 0
    for number in numbers:
        before = before if number is None else number
        damaged_after[before] += number is None
    intact = sorted({0, *filter(None, numbers)})
    gaps = [str(after) for before, after in pairwise(intact) if after - before - 1 > damaged_after[before]]
    if gaps:
        log.warning("%s: records are missing, before %s", place, _name("record", gaps))


def _name(noun: str, names: list[str]) -> str:
    return f"{noun}{'s' if len(names) > 1 else ''} {', '.join(names[:NAMED])}{', ...' if len(names) > NAMED else ''}"


TALKATIVE = ("aiobotocore", "httpx")

LINES, SECONDS = 200, 60.0
"""So many lines in so many seconds are passed on to whoever waits for a stage; warnings always are."""


def start_logging(level: int, handler: logging.Handler) -> None:
    """Send the records of this process from a level on to a handler."""
    handler.setLevel(level)
    logging.basicConfig(level=logging.INFO, handlers=[handler])  # others may want more than this one: `kept_log`
    for name in TALKATIVE:
        logging.getLogger(name).setLevel(logging.WARNING)


def for_terminals() -> logging.Handler:
    """A handler that writes lines with the time to standard error."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s", datefmt="%H:%M:%S"))
    return handler


class AsEvents(logging.Handler):
    """Sends records as events to standard output: not more than a server can show, with the rank if there are
    several.
    """

    def __init__(self, rank: int | None = None) -> None:
        super().__init__()
        self._whose = {} if rank is None else {"rank": rank}
        self._since, self._passed, self._left_out = time.monotonic(), 0, 0

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.WARNING or self._may_pass():
            self._send(record.levelname, record.name, record.getMessage())

    def close(self) -> None:
        self._tell_left_out()
        super().close()

    def _may_pass(self) -> bool:
        now = time.monotonic()
        if now - self._since >= SECONDS:
            self._tell_left_out()
            self._since, self._passed = now, 0
        may = self._passed < LINES
        self._passed += may
        self._left_out += not may
        return may

    def _tell_left_out(self) -> None:
        if self._left_out:
            self._send(
                "INFO", __name__, f"{self._left_out} lines are left out here; the run's folder has them, in {LOGS}"
            )
        self._left_out = 0

    def _send(self, level: str, logger: str, message: str) -> None:
        emit(sys.stdout, "log", level=level, logger=logger, message=message, **self._whose)


@contextmanager
def kept_log(store: Store, run: str, rank: int) -> Iterator[None]:
    """Keep every record of a rank in the run's folder too, after those of the starts before this one.

    A remote store has them when the block ends, and the first rank's whenever the run's other records are sent
    (run_log.py).
    """
    key = f"{run}/{LOGS}/rank-{rank}.log"
    if store.local is None:
        store.write_bytes(key, store.read_bytes(key) if store.exists(key) else b"")
    path = store.fetch(key)
    path.parent.mkdir(parents=True, exist_ok=True)
    handler = _Kept(path)
    logging.root.addHandler(handler)
    try:
        yield
    finally:
        logging.root.removeHandler(handler)
        with suppress(OSError):  # `handleError` has said it
            handler.close()
        if store.local is None:
            try:
                store.put(Path(handler.baseFilename), key)
            except StorageError as error:
                log.warning("the run's log could not be sent: %s", error)


class _Kept(logging.FileHandler):
    """Appends records to a file until that fails: training does not end for want of a line."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, encoding="utf-8")
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))

    def handleError(self, record: logging.LogRecord) -> None:
        logging.root.removeHandler(self)
        log.warning("%s can no longer be written: %s", self.baseFilename, sys.exc_info()[1])
