"""Predictions of new texts with a finished model, as a stream.

Reads, encodes and predicts one block of texts at a time, so memory use does not grow with their number. Within a block,
texts of about the same length share a batch. Texts are encoded as in training, by the tokenizer in the model's folder.
"""

from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TextIO, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from torch import nn
from transformers import PreTrainedModel

from trainer.common.display import plural, text_pairs
from trainer.common.errors import ArtifactError, ConfigError, TokenizerError
from trainer.common.progress import Progress
from trainer.config.labelled import PredictJob
from trainer.data.labelled.encoded import open_split
from trainer.data.labelled.encoding import TAGS, encode_block, warn_of_markers
from trainer.data.labelled.look import describe_heads, measure_lengths, rows_to_look_at
from trainer.data.labelled.rows import characters_of
from trainer.data.labelled.text_encoder import TextEncoder, load_text_encoder
from trainer.data.shards import batches
from trainer.data.splits import TRAIN
from trainer.kinds.labelled.measure import applying, predict, split_lines
from trainer.kinds.labelled.predictions import (
    FILE,
    NewTexts,
    Wanted,
    find_predictions,
    identify_predictions,
    open_texts,
    predictions_step,
    summarise,
)
from trainer.models.classifiers import MULTI_LABEL, check_outputs, classes_of, load_finished
from trainer.models.pretrained import architectures_of, classifies, load_config
from trainer.models.weights import check_weights
from trainer.records.basis import Record
from trainer.records.results import Lengths, PredictedTexts
from trainer.records.steps import Step, publish
from trainer.store.storage import Store
from trainer.training.rank_watchdog import explaining_lost_ranks
from trainer.training.runtime import Runtime, check_devices, start_runtime

BLOCK_TEXTS, BLOCK_CHARACTERS = 4096, 2**22
"""Size of a block: large enough to form batches of texts of about the same length."""


@explaining_lost_ranks()
def predict_texts(job: PredictJob, progress: Progress) -> PredictedTexts:
    """Publish a model's predictions of new texts, or find them published and intact. Called by every rank.

    Raises `CorpusError` and `RecordError` for bad texts, before the model is used; `ArtifactError` if the model is
    missing, damaged, or returns a non-finite number; `ConfigError` if it is not a finished classifier.
    """
    check_devices(job.precision, job.processes, job.device)
    store = Store(job.store)
    runtime = start_runtime(job.precision, job.device)
    wanted = runtime.on_first(lambda: identify_predictions(store, job))
    step = predictions_step(store, job, wanted)
    if (earlier := runtime.on_first(lambda: find_predictions(step))) is not None:
        return earlier
    runtime.on_first(store.sweep)
    check_weights(wanted.model.beside or wanted.model.folder)
    encoder = load_text_encoder(wanted.model.folder, wanted.data, finished=True)
    model = load_finished(wanted.model.folder, encoder.pad_id, wanted.model.beside)
    if encoder.vocab_size > (embeddings := model.config.get_text_config().vocab_size):
        raise TokenizerError(
            f"the tokenizer of {job.model!r} gives ids up to {encoder.vocab_size - 1}, but the model has {embeddings} "
            "embeddings"
        )
    cast(nn.Module, model).to(runtime.device)
    with open_texts(wanted.data, wanted.source.parts[TRAIN], progress) as texts, ExitStack() as stack:
        folder = stack.enter_context(store.staging(key=step.key)) if runtime.rank == 0 else None
        predicted = _predict(job, texts, encoder, model, runtime, progress, folder and folder / FILE)
        return runtime.on_first(lambda: _publish(step, job, wanted, encoder, texts, folder, predicted))


def _predict(
    job: PredictJob, texts: NewTexts, encoder: TextEncoder, model: PreTrainedModel, runtime: Runtime,
    progress: Progress,
    path: Path | None,
) -> dict[str, Any]:  # fmt: skip
    """Predict the texts, and on the first rank write the predictions in order; returns the counts."""
    classes = classes_of(model.config)
    several = model.config.problem_type == MULTI_LABEL
    if encoder.by_words and classes is None:
        raise ConfigError(f"{job.model} predicts a number for each word; expected a model that classifies words")
    counts, spelled, figures = Counter[str](), Counter[str](), _Figures(classes, several)
    with ExitStack() as stack:
        file: TextIO | None = stack.enter_context(open(path, "w", encoding="utf-8")) if path else None
        bar = stack.enter_context(progress.bar("predict", sum(texts.counts), "text"))
        for block in batches(texts.examples(), BLOCK_CHARACTERS, characters_of, BLOCK_TEXTS):
            nothing = pa.nulls(len(block), TAGS if encoder.by_words else pa.int64())
            encoded = encode_block(block, encoder, nothing)
            texts.skip(encoded.bad)
            if not encoded.rows.num_rows:
                continue
            counts.update(encoded.counts)
            spelled.update(encoded.spelled)
            split = open_split(pa.Table.from_batches([encoded.rows]), encoder.pad_id)
            logits = predict(model, split, job.batch, runtime, bar.advance)
            if not (finite := np.isfinite(logits).all(axis=1)).all():
                name = split.ids[split.example_at(int(np.argmin(finite)))]
                raise ArtifactError(
                    f"{job.model} gives a number that is not finite for text {name!r}, in {job.precision}; check its "
                    "weights"
                )
            figures.add(logits)
            if file is not None:
                file.writelines(split_lines(split, logits, classes, several))
    if file is not None:
        warn_of_markers(job.name, spelled)
    return {**counts, "classes": classes, "predicted": figures.summary()}


class _Figures:
    """The number of texts or words of each class, or the mean, minimum and maximum of the predicted numbers."""

    def __init__(self, classes: list[str] | None, several: bool) -> None:
        self._classes, self._several = classes, several
        self._counts: Counter[int] = Counter()
        self._sum, self._least, self._greatest, self._texts = 0.0, float("inf"), float("-inf"), 0

    def add(self, logits: NDArray[np.float32]) -> None:
        if self._classes is not None:
            self._counts.update((applying(logits).nonzero()[1] if self._several else logits.argmax(axis=1)).tolist())
            return
        numbers = logits[:, 0].astype(np.float64)
        self._sum, self._texts = self._sum + float(numbers.sum()), self._texts + len(numbers)
        self._least, self._greatest = min(self._least, float(numbers.min())), max(self._greatest, float(numbers.max()))

    def summary(self) -> dict[str, float]:
        if self._classes is not None:
            return {name: self._counts[number] for number, name in enumerate(self._classes)}
        return {"mean": self._sum / self._texts, "min": self._least, "max": self._greatest}


def _publish(
    step: Step, job: PredictJob, wanted: Wanted, encoder: TextEncoder, texts: NewTexts, folder: Path | None,
    predicted: dict[str, Any],
) -> PredictedTexts:  # fmt: skip
    assert folder is not None
    parts, identity = wanted.source.parts[TRAIN], wanted.source.identity[TRAIN]
    details = {
        "name": job.name,
        "model": {
            "name": job.model, "key": wanted.model.key, "origin": wanted.model.origin, "files": wanted.model.files,
        },
        "source": wanted.data.source,
        "files": [
            {"path": part.path, "sha256": each[0], "texts": count}
            for part, each, count in zip(parts, identity, texts.counts, strict=True)
        ],
        "text_columns": wanted.data.text_columns,
        "id_column": wanted.data.id_column,
        "max_length": encoder.max_length,
        "precision": job.precision,
        "texts": sum(texts.counts),
        **texts.bad.as_details(),
        **predicted,
    }  # fmt: skip
    return summarise(step.key, publish(step, folder, details))


class TextsPreview(Record):
    """The checked part of the new texts, and what was found there."""

    looked_at: str
    texts: int
    bad: dict[str, Any]
    lengths: Lengths

    def lines(self) -> list[str]:
        """The preview as lines for a terminal."""
        return text_pairs([("checked", self.looked_at), ("texts", f"{self.texts:,}; {self.lengths.describe()}")])


def look_at_texts(job: PredictJob, wanted: Wanted, progress: Progress) -> TextsPreview:
    """Check the model and the texts: all texts if that takes seconds, else the first of each file.

    Raises the same `PipelineError` as predicting them.
    """
    check_devices(job.precision, job.processes, job.device)
    check_weights(wanted.model.beside or wanted.model.folder)
    if not classifies(architectures_of(wanted.model.folder)):
        raise ConfigError(f"{job.model} is not a finished classifier; fine-tune it on labelled data first")
    check_outputs(job.model, load_config(wanted.model.folder))
    encoder, parts = load_text_encoder(wanted.model.folder, wanted.data, finished=True), wanted.source.parts[TRAIN]
    most = rows_to_look_at(parts)
    with open_texts(wanted.data, parts, progress, most) as texts:
        found = sum(texts.counts)
        lengths = measure_lengths(texts.examples(), found, encoder)
        looked_at = describe_heads("rows", parts) if most else f"all of {plural(len(parts), 'file')}"
        return TextsPreview(looked_at=looked_at, texts=found, bad=texts.bad.as_details(), lengths=lengths)
