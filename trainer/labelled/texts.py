"""The texts of a split of labelled data by themselves: those of its good rows, whatever their labels mean."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from trainer.config.labelled import LabelledDataConfig
from trainer.labelled.checks import require_columns
from trainer.labelled.rows import Part, open_table
from trainer.labelled.scan import BAD, rows_of, scan_rows, texts_of


class RowTexts(NamedTuple):
    """The numbers of a part and of a row in it, from 0, and the row's texts: one, the two of a pair, or its words in one."""

    part: int
    number: int
    texts: tuple[str, ...]


def read_texts(data: LabelledDataConfig, split: str, parts: Sequence[Part]) -> Iterator[RowTexts]:
    """The texts of the good rows of a split's parts.

    Raises `CorpusError` for a missing column and `RecordError` for the first bad row that may not be passed over, as reading
    the data as a whole does. Only what that says of labels because of other splits is not known here.
    """
    for part in parts:
        require_columns(data, split, part, open_table(part, data).columns)
    is_good = iter(scan_rows(data, split, parts, False, lambda rows: None).codes != BAD)
    for place, part in enumerate(parts):
        for number, (_, row) in enumerate(rows_of(data, [part])):
            if next(is_good, False):  # a file that has grown is refused at its end
                texts = texts_of(data, row.values)
                yield RowTexts(place, number, (" ".join(texts),) if data.task == "tokens" else texts)
