"""The records of a run, as its metrics.jsonl holds them, a line each. Readable without the libraries that wrote them."""

import logging
from contextlib import suppress
from typing import Any

from trainer.errors import ArtifactError
from trainer.formats import plural
from trainer.manifest import MANIFEST
from trainer.places import FINAL, LAST, METRICS
from trainer.pointers import read_pointer
from trainer.seals import is_sealed_line, unseal_line
from trainer.shapes import require_record
from trainer.storage import Store

log = logging.getLogger(__name__)

NAMED = 5
"""Damaged lines that are named."""


def read_records(store: Store, run: str) -> list[dict[str, Any]]:
    """All intact records of a run, in order; damaged ones are left out, with a warning."""
    try:
        content = store.read_bytes(f"{run}/{METRICS}")
    except FileNotFoundError:
        content = b""
    lines = intact_lines(store, run, content)
    records = [record for line in lines if (record := _meaning(store, run, line)) is not None]
    _tell_missing(store, run, records)
    return records


def _tell_missing(store: Store, run: str, records: list[dict[str, Any]]) -> None:
    """Warn if a finished run's records end before its last checkpoint: whole lines are lost, which no checksum tells."""
    if not store.exists(f"{run}/{FINAL}/{MANIFEST}"):
        return
    with suppress(ArtifactError):  # a damaged pointer is told of elsewhere
        pointer, last = read_pointer(store, f"{run}/{LAST}"), max((record["step"] for record in records), default=0)
        if pointer is not None and last < pointer.step:
            place = store.path(f"{run}/{METRICS}")
            log.warning(
                "%s ends with step %d, and the run was saved at step %d: records are missing", place, last, pointer.step
            )


def _meaning(store: Store, run: str, line: bytes) -> dict[str, Any] | None:
    """What an intact line says; None, with a warning, if that is none of the records that are written."""
    record = unseal_line(line)
    try:
        require_record(record)
    except ValueError as error:
        log.warning("%s: a record is left out, as it cannot be one: %s", store.path(f"{run}/{METRICS}"), error)
        return None
    return record


def intact_lines(store: Store, run: str, content: bytes) -> list[bytes]:
    """The lines of a run's records that match their checksums, without their ends; the others are told of by their numbers.

    A last line that a kill or a power loss cut short is left out without a word.
    """
    key = f"{run}/{METRICS}"
    *lines, rest = content.split(b"\n")
    lines += [last for last in (rest, rest[:-1]) if is_sealed_line(key, last)]  # only its end is missing, or another character
    intact = [is_sealed_line(key, line) for line in lines]
    if damaged := [str(number) for number, whole in enumerate(intact, start=1) if not whole]:
        named = f"line{'s' if len(damaged) > 1 else ''} {', '.join(damaged[:NAMED])}{', ...' if len(damaged) > NAMED else ''}"
        log.warning("%s: %s left out, as not matching the checksum: %s", store.path(key), plural(len(damaged), "record"), named)
    return [line for line, whole in zip(lines, intact, strict=True) if whole]
