"""Skipping of bad records within the limit that a job allows: counts them and keeps the first few for reports."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from trainer.common.display import plural
from trainer.common.errors import RecordError

SHOWN = 3
"""Number of skipped records that are reported with location and error."""


class BadRecords:
    """The bad records of some data; up to `allowed` are skipped. `where` precedes the error raised for one more."""

    def __init__(self, allowed: int, where: str = "") -> None:
        self._allowed, self._where = allowed, where
        self.count = 0
        self.first: list[str] = []

    def add(self, error: RecordError) -> None:
        """Skip a bad record; raise `RecordError` if it exceeds the limit."""
        self.add_all(1, iter([error]))

    def add_all(self, number: int, errors: Iterator[RecordError]) -> None:
        """Skip `number` bad records. `errors` yields their errors; only those that are reported are read."""
        self.count += number
        if self.count > self._allowed:
            error = next(errors)
            raise RecordError(f"{self._where}{error}{_how_to_skip(self._allowed)}") from error
        self.first += map(str, islice(errors, min(number, SHOWN - len(self.first))))

    def describe(self) -> str:
        """The number of bad records and the first ones, in one line."""
        return describe_bad(self.count, self.first)

    def as_details(self) -> dict[str, Any]:
        """Entries for the manifest: `bad_records`, the number, and the first ones as `skipped`."""
        return {"bad_records": self.count, **({"skipped": self.first} if self.first else {})}


def describe_bad(count: int, first: Sequence[str]) -> str:
    """The number of bad records and the first ones, in one line."""
    more = [f"and {count - len(first):,} more"] if count > len(first) else []
    return plural(count, "bad record") + (f" ({'; '.join([*first, *more])})" if first else "")


def check_budget(what: str, most: int, found: Mapping[str, Any]) -> None:
    """Raise `RecordError` if a manifest records more bad records than may be skipped."""
    if (bad := found["bad_records"]) > most:
        raise RecordError(
            f"{what}: max_bad_records allows {most}, found {describe_bad(bad, found.get('skipped', []))}; correct "
            "the files or raise max_bad_records"
        )


def skipped_rows(details: Mapping[str, Any]) -> list[dict[str, object]]:
    """One row for each skipped record in the manifest details of a corpus or of data in splits."""
    corpus = {details["corpus"]: {**details["totals"], **details}} if "corpus" in details else {}
    return [
        {"data": name, "bad records skipped": part["bad_records"], "where and why": record}
        for name, part in details.get("splits", corpus).items()
        if part["bad_records"]
        for record in part.get("skipped") or ["not recorded"]
    ]


def first_of(parts: Iterable[Sequence[str]]) -> list[str]:
    """The first skipped records of data in parts."""
    return [each for part in parts for each in part][:SHOWN]


def _how_to_skip(allowed: int) -> str:
    if allowed:
        return f" (more than the {allowed} that max_bad_records allows: correct the records or raise it)"
    return " (max_bad_records is 0: correct the record or raise it)"
