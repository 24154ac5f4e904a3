"""Labelled files by themselves, encoded for a finished classifier to be measured on, without its training data."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trainer.common.errors import CorpusError
from trainer.common.progress import Progress
from trainer.config.labelled import LabelledDataConfig
from trainer.labelled.blocks import unlabelled, write_split
from trainer.labelled.checks import check_columns
from trainer.labelled.data import read_split, require_examples
from trainer.labelled.encoded import ENDING, EncodedSet, open_rows
from trainer.labelled.encoded_splits import open_split
from trainer.labelled.label_kinds import KINDS
from trainer.labelled.scan import BAD, scan_rows
from trainer.labelled.sources import TEST, TRAIN, LabelledSource, fetch_part
from trainer.labelled.text_encoder import TextEncoder


@contextmanager
def encode_files(
    data: LabelledDataConfig, source: LabelledSource, encoder: TextEncoder, classes: list[str] | None, progress: Progress
) -> Iterator[EncodedSet]:
    """The examples of some files, named as training files by `data`, as the test split of a set; it lasts for the block.

    Raises `CorpusError` and `RecordError` as reading training data does: for a missing column, labels that are none of the
    `classes`, and files without a label.
    """
    with tempfile.TemporaryDirectory(prefix="headrace-") as folder:
        parts = [fetch_part(part, Path(folder)) for part in source.parts[TRAIN]]
        check_columns(data, {TRAIN: parts})
        with progress.bar(f"read {data.name}", None, "row") as bar:
            scan = scan_rows(data, TEST, parts, False, bar.advance)
        require_examples(data, TEST, scan, scan.codes != BAD)
        labels = KINDS[data.task].find(data, scan.values, None, len(scan.codes))
        split = read_split(data, labels, TEST, scan)
        labelled = int((~unlabelled(split.labels)).sum())
        if not labelled:
            names = ", ".join(part.name for part in parts)
            raise CorpusError(f"{names}: no example has a label, so that nothing can be measured; `predict` predicts them")
        path = Path(folder, f"{TEST}{ENDING}")
        with progress.bar(f"encode {data.name}", len(split), "example") as bar:
            figures = write_split(path, split, encoder, data.name, bar.advance)
        details = {
            "name": data.name,
            "task": data.task,
            "classes": classes,
            "text_columns": data.text_columns,
            "label_column": ", ".join(data.columns_of_labels),
            "max_length": encoder.max_length,
            "pad_id": encoder.pad_id,
            "vocab_size": encoder.vocab_size,
            "splits": {TEST: {**figures, **scan.bad.told(), "labelled": labelled}},
            "tokenizer": encoder.digest,
            "source": {"identity": source.identity[TRAIN], "validation_cut": False},
        }
        yield EncodedSet(details, {TEST: open_split(open_rows(path), encoder.pad_id)}, encoder.pad_id)
