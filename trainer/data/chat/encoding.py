"""The step that encodes conversations."""

import logging
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from trainer.common.progress import Progress
from trainer.config.chat import ChatDataConfig, ChatJob
from trainer.data.chat.encoded import ChatWriter
from trainer.data.chat.encoder import (
    ChatEncoder,
    duplicates_across,
    load_chat_encoder,
    read_encoded,
    require_conversations,
)
from trainer.data.chat.messages import Counts
from trainer.data.labelled.encoding import describe_source, encoded_step, in_data
from trainer.data.labelled.rows import bad_records
from trainer.data.labelled.sources import TRAIN, VALIDATION, LabelledSource, find_labelled
from trainer.data.sources import forgetting_changed
from trainer.models.pretrained import find_model
from trainer.models.tokenizer import TOKENIZER_FILE, keeps_text
from trainer.records.steps import Step, publish
from trainer.store.manifest import Manifest, digest_file
from trainer.store.storage import Store

log = logging.getLogger(__name__)


FORMAT = 4


def encode_conversations(
    store: Store, job: ChatJob, progress: Progress, model_folder: str | Path | None = None
) -> Step:
    """The step that encodes the job's conversations with the model's tokenizer.

    It raises `CorpusError` and `RecordError` for bad input, `TokenizerError` for a tokenizer or a template that cannot
    be used, `ConfigError` for a context beyond the model's positions, `StorageError` if the store refuses.
    """
    folder = model_folder or find_model(store, job.model.pretrained, hub=True).folder
    encoder, source = load_chat_encoder(folder, job.data), find_labelled(store, job.data)
    options = in_data({"task": job.data.task, "source": job.data.source, "context": encoder.context})
    return encoded_step(store, job.data, source, encoder, {"format": FORMAT, **options}, partial(_build, job, progress))


def _build(job: ChatJob, progress: Progress, step: Step, source: LabelledSource, encoder: ChatEncoder) -> Manifest:
    with forgetting_changed(step.store), step.store.staging(key=step.key) as folder:
        encoder.save(folder)
        counts = _write(job, source, encoder, folder, progress)
        tell(job, counts)
        details = _describe(job, encoder, counts)
        details["tokenizer_sha256"] = digest_file(folder / TOKENIZER_FILE).sha256
        return publish(step, folder, {**details, "tokenizer": encoder.digest, "source": describe_source(source)})


def count_conversations(
    job: ChatJob, source: LabelledSource, encoder: ChatEncoder, progress: Progress
) -> dict[str, Counts]:
    """Look at all conversations without writing them. Raises as encoding does."""
    counts = empty_counts(job.data, source)
    with progress.bar(f"look at {job.data.name}", None, "conversation") as bar:
        for split, parts in source.parts.items():
            for _ in read_encoded(job.data, split, parts, source.cut and split == TRAIN, encoder, counts):
                bar.advance(1)
    require_conversations(job.data, counts, source.cut)
    return counts


def tell(job: ChatJob, counts: dict[str, Counts]) -> None:
    """Say what was skipped, cut or left out, and what makes figures flatter."""
    name = job.data.name
    for split, found in counts.items():
        if found.bad.count:
            log.warning("data set %s, %s split: skipped %s", name, split, found.bad.describe())
        if found.truncated:
            log.warning(
                "data set %s, %s split: conversations that are longer than data.context and lose their end: %d; left "
                "out, as no answer is left of them: %d", name, split, found.truncated, found.unanswered,
            )  # fmt: skip
        if found.unmarked:
            log.warning(
                "data set %s, %s split: answers that the chat template does not mark by {%% generation %%}, so that "
                "these are not learnt: %d", name, split, found.unmarked,
            )  # fmt: skip
    if duplicates := duplicates_across(counts):
        log.warning(
            "data set %s: %d of %d questions of the validation split are in train as well, so validation figures will "
            "flatter",
            name, duplicates, len(counts[VALIDATION].questions),
        )  # fmt: skip


def empty_counts(data: ChatDataConfig, source: LabelledSource) -> dict[str, Counts]:
    """Counts of nothing yet, of the splits that there will be."""
    splits = [TRAIN, VALIDATION, *(split for split in source.parts if split not in (TRAIN, VALIDATION))]
    return {split: Counts(bad_records(data, split)) for split in splits}


def _write(
    job: ChatJob, source: LabelledSource, encoder: ChatEncoder, folder: Path, progress: Progress
) -> dict[str, Counts]:
    """Write a file for each split."""
    counts = empty_counts(job.data, source)
    with ExitStack() as stack:
        writers = {split: ChatWriter(folder, split) for split in counts}
        for writer in writers.values():
            stack.callback(writer.close)
        bar = stack.enter_context(progress.bar(f"encode {job.data.name}", None, "conversation"))
        for split, parts in source.parts.items():
            for found in read_encoded(job.data, split, parts, source.cut and split == TRAIN, encoder, counts):
                writers[found.split].add(found)
                bar.advance(1)
    require_conversations(job.data, counts, source.cut)
    return counts


def _describe(job: ChatJob, encoder: ChatEncoder, counts: dict[str, Counts]) -> dict[str, Any]:
    """The manifest's details: everything that a report needs."""
    return {
        "name": job.data.name,
        "task": job.data.task,
        "context": encoder.context,
        "end_id": encoder.end_id,
        "end_of_turn": encoder.template.end,
        "pad_id": encoder.pad_id,
        "vocab_size": encoder.vocab_size,
        "keeps_text": keeps_text(encoder.tokenizer.backend_tokenizer.to_str()),
        "duplicates_across": duplicates_across(counts),
        "splits": {split: found.told() for split, found in counts.items()},
    }
