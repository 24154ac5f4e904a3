"""New texts for a finished model, read in a stream: looked at as a whole first, so that nothing bad is found later."""

import logging
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from trainer.common.bad_records import BadRecords
from trainer.common.errors import CorpusError, RecordError
from trainer.common.progress import Progress
from trainer.config.labelled import LabelledDataConfig
from trainer.data.labelled.examples import Example, lacks_column
from trainer.data.labelled.rows import Part, columns_of, open_table
from trainer.data.labelled.scan import Placed, bad_records, id_of, read_values, rows_of, texts_of, watched_rows
from trainer.data.labelled.sources import fetch_part

log = logging.getLogger(__name__)


class NewTexts(NamedTuple):
    """Checked files: `counts` are the good texts of each, `bad` the rows in all that are skipped."""

    data: LabelledDataConfig
    parts: list[Part]
    counts: list[int]
    bad: BadRecords

    def examples(self) -> Iterator[Example]:
        """The good texts in the order of files and rows, read anew. An id is the id column's value, else the row's number."""
        for number, (_, found) in enumerate(_checked(self.data, rows_of(self.data, self.parts))):
            if isinstance(found, Example):
                yield found if self.data.id_column is not None and found.id else found._replace(id=str(number))


@contextmanager
def open_texts(
    data: LabelledDataConfig, parts: Sequence[Part], progress: Progress, most: int | None = None
) -> Iterator[NewTexts]:
    """Check all rows, or so many of each file; the texts can be read for the length of the block.

    Raises `CorpusError` for a missing column or files without a text, and `RecordError` for the first bad row that may not be
    passed over.
    """
    with tempfile.TemporaryDirectory(prefix="headrace-") as folder:
        fetched = [fetch_part(part, Path(folder)) for part in parts]
        _check_columns(data, fetched)
        counts, bad = [], bad_records(data, None)
        with progress.bar(f"read {data.name}", None, "row") as bar:
            for part in fetched:
                good = 0
                for place, found in _checked(data, watched_rows(data, [part], most)):
                    if isinstance(found, Example):
                        good += 1
                    else:
                        bad.add(RecordError(f"{place()}: {found}"))
                    bar.advance(1)
                counts.append(good)
        if not any(counts):
            raise CorpusError(
                f"data set {data.name!r} is empty: {bad.count} records, {bad.count} of them bad; check that "
                f"{', '.join(part.name for part in parts)} is the right data"
            )
        if bad.count:
            log.warning("data set %s: skipped %s", data.name, bad.describe())
        yield NewTexts(data, fetched, counts, bad)


def _check_columns(data: LabelledDataConfig, parts: Sequence[Part]) -> None:
    for part in parts:
        columns = open_table(part, data).columns
        if missing := [each for each in columns_of(data) if each != data.label_column and each not in columns]:
            raise lacks_column(data, part, missing[0], columns)


def _checked(data: LabelledDataConfig, rows: Iterable[Placed]) -> Iterator[tuple[Callable[[], str], Example | str]]:
    """Every row: what names its place, and its example, without an id where it has none, or what is wrong with it."""
    for place, row in rows:
        problem = row.problem
        if problem is None:
            try:
                read_values(data, row.values)
            except ValueError as error:
                problem = str(error)
        if problem is not None:
            yield place, problem
            continue
        name = id_of(data, row)
        yield place, Example("" if name is None else str(name), texts_of(data, row.values))
