"""Bad records that a job lets be skipped: they are counted, the first are kept to be shown, and one too many is
refused.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from trainer.common.errors import RecordError
from trainer.common.formats import plural

SHOWN = 3
"""Skipped records that are named, each with its place and what is wrong with it."""


class BadRecords:
    """The bad records of some data, of which `allowed` may be skipped; `where` names the data in the error of one too
    many.
    """

    def __init__(self, allowed: int, where: str = "") -> None:
        self._allowed, self._where = allowed, where
        self.count = 0
        self.first: list[str] = []

    def add(self, error: RecordError) -> None:
        """Skip a bad record. Raises `RecordError`, with what to do, if it is one too many."""
        self.add_all(1, iter([error]))

    def add_all(self, number: int, errors: Iterator[RecordError]) -> None:
        """Skip so many bad records. `errors` gives the errors of these, and is read only as far as they are shown."""
        self.count += number
        if self.count > self._allowed:
            error = next(errors)
            raise RecordError(f"{self._where}{error}{_how_to_skip(self._allowed)}") from error
        self.first += map(str, islice(errors, SHOWN - len(self.first)))

    def describe(self) -> str:
        """How many there are, and the first of them, in one line."""
        return describe_bad(self.count, self.first)

    def told(self) -> dict[str, Any]:
        """As the manifest of what is made of the data tells it: `bad_records`, and the first that were `skipped`."""
        return {"bad_records": self.count, **({"skipped": self.first} if self.first else {})}


def describe_bad(count: int, first: Sequence[str]) -> str:
    """How many records are bad, and the first of them, in one line."""
    more = [f"and {count - len(first):,} more"] if count > len(first) else []
    return plural(count, "bad record") + (f" ({'; '.join([*first, *more])})" if first else "")


def check_budget(what: str, most: int, found: Mapping[str, Any]) -> None:
    """Raise `RecordError` if more records were bad, as a manifest tells of some data, than may be skipped."""
    if (bad := found["bad_records"]) > most:
        raise RecordError(
            f"{what}: at most {most} bad records may be skipped, but {describe_bad(bad, found.get('skipped', []))}; "
            "mend the files or raise max_bad_records"
        )


def skipped_rows(details: Mapping[str, Any]) -> list[dict[str, object]]:
    """A row for each skipped record that the details of a corpus, or of data in splits, name."""
    corpus = {details["corpus"]: {**details["totals"], **details}} if "corpus" in details else {}
    return [
        {"data": name, "bad records skipped": part["bad_records"], "where and why": record}
        for name, part in details.get("splits", corpus).items()
        if part["bad_records"]
        for record in part.get("skipped") or ["not recorded"]
    ]


def first_of(parts: Iterable[Sequence[str]]) -> list[str]:
    """The first records that were skipped, of data in parts."""
    return [each for part in parts for each in part][:SHOWN]


def _how_to_skip(allowed: int) -> str:
    if allowed:
        return f" (more than the {allowed} that max_bad_records allows: mend them, or raise it)"
    return " (max_bad_records is 0: mend it, or let some be skipped)"
