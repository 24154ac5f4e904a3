"""The look at new texts, and at the model that is to predict them, before it is loaded."""

from itertools import islice
from pathlib import Path
from typing import Any

from trainer.common.errors import ConfigError
from trainer.common.formats import count, plural
from trainer.common.progress import Progress
from trainer.config.predicting import PredictJob
from trainer.data.labelled.look import HEAD_ROWS, WHOLE_BYTES, measure_lengths, stored_bytes
from trainer.data.labelled.text_encoder import load_text_encoder
from trainer.data.splits import TRAIN
from trainer.kinds.labelled.predictions import Wanted, open_texts
from trainer.models.pretrained import classifies, read_object
from trainer.models.weights import check_weights
from trainer.records.basis import Record
from trainer.records.results import Lengths
from trainer.training.runtime import check_devices


class TextsPreview(Record):
    """What was looked at of new texts, and what was found."""

    looked_at: str
    texts: int
    bad: dict[str, Any]
    lengths: Lengths

    def lines(self) -> list[str]:
        """The same for a terminal."""
        rows = [("looked at", self.looked_at), ("texts", f"{self.texts:,}; {self.lengths.describe()}")]
        return [f"{name:<16}{value}" for name, value in rows]


def look_at_texts(job: PredictJob, wanted: Wanted, progress: Progress) -> TextsPreview:
    """Check the model and the texts: all of them where that takes seconds, else the first of each file.

    Raises the `PipelineError` that predicting them would.
    """
    check_devices(job.precision, job.processes, job.device, where="")
    check_weights(wanted.model.beside or wanted.model.folder)
    if not classifies(read_object(Path(wanted.model.folder, "config.json")).get("architectures")):
        raise ConfigError(f"{job.model} is no finished classifier; fine-tune it on labelled data first")
    encoder, parts = load_text_encoder(wanted.model.folder, wanted.data, finished=True), wanted.source.parts[TRAIN]
    whole = sum(map(stored_bytes, parts)) <= WHOLE_BYTES
    with open_texts(wanted.data, parts, progress, None if whole else HEAD_ROWS) as texts:
        found = sum(texts.counts)
        lengths = measure_lengths(islice(texts.examples(), found), found, encoder)
        told = f"all of {plural(len(parts), 'file')}"
        if not whole:
            told = f"the first {count(HEAD_ROWS)} rows of each of {plural(len(parts), 'file')}"
        return TextsPreview(looked_at=told, texts=found, bad=texts.bad.told(), lengths=lengths)
