"""Reading a run's metrics.jsonl, which has one record per line; needs no training libraries."""

import logging
from collections import Counter
from contextlib import suppress
from itertools import pairwise
from typing import Any

from trainer.common.display import plural, some
from trainer.common.errors import ArtifactError
from trainer.records.sealed import read_pointer, sealed_number, unseal_line
from trainer.records.shapes import require_record
from trainer.store.manifest import MANIFEST
from trainer.store.names import FINAL, LAST, METRICS_FILE
from trainer.store.storage import Store

log = logging.getLogger(__name__)


ENDED = "end"
"""The kind of the last record of a run that was trained to the end."""

ROLLBACK = "rollback"
"""The kind of the record of a return to the last checkpoint, whose `step` is that of the checkpoint."""

SCHEDULE = "schedule"
"""The kind of the record of planned learning rates: its `rates` are pairs of a step and the rate after it."""

ASKED = "harness"
"""The kind of the records of lm-eval during training: one field per figure, `TASK/FIGURE`."""

ASKED_BY = "tasks"
"""The kind of the records of what determines these figures from here on: a fingerprint `by` task."""


def read_records(store: Store, run: str) -> list[dict[str, Any]]:
    """All intact records of a run, in order; logs warnings about damaged and missing ones."""
    lines = intact_lines(store, run, store.find_bytes(f"{run}/{METRICS_FILE}") or b"")
    records = [record for line in lines.values() if (record := open_line(store, run, line)) is not None]
    if not records or records[-1]["kind"] != ENDED:
        _warn_cut_short(store, run, max((record["step"] for record in records), default=0))
    return records


def _warn_cut_short(store: Store, run: str, last: int) -> None:
    """Warn about records that end before the end of a finished run, or before a saved step."""
    place = store.path(f"{run}/{METRICS_FILE}")
    if store.exists(f"{run}/{FINAL}/{MANIFEST}"):
        log.warning(
            "%s ends with step %d, before the end of its run, which is finished: records are missing", place, last
        )
        return
    with suppress(ArtifactError):  # readers of the pointer report its damage
        pointer = read_pointer(store, f"{run}/{LAST}")
        if pointer is not None and pointer.step > last:
            log.warning(
                "%s ends with step %d, before step %d, which is saved: records are missing", place, last, pointer.step
            )


def open_line(store: Store, run: str, line: bytes) -> dict[str, Any] | None:
    """The record of an intact line; None, with a warning, if it is not a valid record."""
    record = unseal_line(line)
    try:
        require_record(record)
    except ValueError as error:
        log.warning("%s: a record is ignored because it is not valid: %s", store.path(f"{run}/{METRICS_FILE}"), error)
        return None
    return record


def intact_lines(store: Store, run: str, content: bytes) -> dict[int, bytes]:
    """The lines of a run's records with matching checksums, without line ends, by the numbers stored in them.

    They are sorted by number; of two lines with the same number, the later one counts. Warnings refer to damaged lines
    by their position in the file, and to missing ones by the number of the following record. A last line that a kill or
    power loss cut short is dropped without a warning.
    """
    key = f"{run}/{METRICS_FILE}"
    *lines, rest = content.split(b"\n")
    # The end of the last line may be missing, or be another character.
    lines += [last for last in (rest, rest[:-1]) if sealed_number(key, last)]
    numbers = [sealed_number(key, line) for line in lines]
    if damaged := [str(place) for place, number in enumerate(numbers, start=1) if number is None]:
        log.warning(
            "%s: %s ignored because of a wrong checksum: %s",
            store.path(key), plural(len(damaged), "record"), _name("line", damaged),
        )  # fmt: skip
    _warn_missing(store.path(key), numbers)
    found = {number: line for number, line in zip(numbers, lines, strict=True) if number is not None}
    if others := {number for number, line in zip(numbers, lines, strict=True) if number and line != found[number]}:
        log.warning(
            "%s: %s ignored because another record has the same number",
            store.path(key),
            _name("record", [str(each) for each in sorted(others)]),
        )
    return dict(sorted(found.items()))


def _warn_missing(place: str, numbers: list[int | None]) -> None:
    """Warn about gaps between the lines' numbers that the damaged lines (None) in them do not explain."""
    damaged_after: Counter[int] = Counter()
    before = 0
    for number in numbers:
        before = before if number is None else number
        damaged_after[before] += number is None
    intact = sorted({0, *filter(None, numbers)})
    gaps = [str(after) for before, after in pairwise(intact) if after - before - 1 > damaged_after[before]]
    if gaps:
        log.warning("%s: records are missing before %s", place, _name("record", gaps))


def _name(noun: str, names: list[str]) -> str:
    return f"{noun}{'s' if len(names) > 1 else ''} {some(names)}"
