"""The step that encodes conversations."""

import logging
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from trainer.common.progress import Progress
from trainer.config.chat import ConversationsConfig, ConversationsJob
from trainer.data.chat.encoded import SCHEMA, rows_of
from trainer.data.chat.encoder import (
    ChatEncoder,
    Encoded,
    duplicates_across,
    load_chat_encoder,
    read_encoded,
    require_conversations,
)
from trainer.data.chat.messages import CONVERSATION, Counts, Form
from trainer.data.encoded import encoded_step, in_data, writing_rows
from trainer.data.labelled.rows import bad_records
from trainer.data.splits import TRAIN, VALIDATION, SplitSource, find_splits
from trainer.models.pretrained import find_model
from trainer.models.tokenizer import keeps_text
from trainer.records.steps import Step
from trainer.store.storage import Store

log = logging.getLogger(__name__)


FORMAT = 5

BLOCK = 512
"""Conversations that are written at a time."""


def encode_conversations(
    store: Store,
    job: ConversationsJob,
    progress: Progress,
    model_folder: str | Path | None = None,
    form: Form = CONVERSATION,
) -> Step:
    """The step that encodes the conversations of records of a form, one after another, with the model's tokenizer.

    It raises `CorpusError` and `RecordError` for bad input, `TokenizerError` for a tokenizer or a template that cannot
    be used, `ConfigError` for a context beyond the model's positions, `StorageError` if the store refuses.
    """
    data, folder = job.data, model_folder or find_model(store, job.model.pretrained, hub=True).folder
    encoder, source = load_chat_encoder(folder, data), find_splits(store, data)
    options = in_data({"task": data.task, "source": data.source, "context": encoder.context})
    write = partial(_write, data, progress, source, encoder, form)
    return encoded_step(store, data, source, encoder, {"format": FORMAT, **options}, write)


def read_conversations(
    data: ConversationsConfig,
    source: SplitSource,
    encoder: ChatEncoder,
    counts: dict[str, Counts],
    progress: Progress,
    doing: str = "look at",
    most: int | None = None,
    form: Form = CONVERSATION,
) -> Iterator[Encoded]:
    """All conversations of some data, or those of `most` records of each file, encoded and counted. Raises as encoding
    does.
    """
    with progress.bar(f"{doing} {data.name}", None, "conversation") as bar:
        for split, parts in source.parts.items():
            for found in read_encoded(data, split, parts, source.cut and split == TRAIN, encoder, counts, most, form):
                yield found
                bar.advance(1)
    if most is None:
        require_conversations(data, counts, source.cut)


def tell(data: ConversationsConfig, counts: dict[str, Counts]) -> None:
    """Say what was skipped, cut or left out, and what makes figures flatter."""
    name = data.name
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


def empty_counts(data: ConversationsConfig, source: SplitSource) -> dict[str, Counts]:
    """Counts of nothing yet, of the splits that there will be."""
    splits = [TRAIN, VALIDATION, *(split for split in source.parts if split not in (TRAIN, VALIDATION))]
    return {split: Counts(bad_records(data, split)) for split in splits}


def _write(
    data: ConversationsConfig, progress: Progress, source: SplitSource, encoder: ChatEncoder, form: Form, folder: Path
) -> dict[str, Any]:
    """Write a file for each split; returns the manifest's details."""
    counts = empty_counts(data, source)
    blocks: dict[str, list[Encoded]] = {split: [] for split in counts}
    with ExitStack() as stack:
        files = {split: stack.enter_context(writing_rows(folder, split, SCHEMA)) for split in counts}
        for found in read_conversations(data, source, encoder, counts, progress, "encode", form=form):
            block = blocks[found.split]
            block.append(found)
            if len(block) == BLOCK:
                files[found.split].write_batch(rows_of(block))
                block.clear()
        for split, block in blocks.items():
            if block:
                files[split].write_batch(rows_of(block))
    tell(data, counts)
    return _describe(data, encoder, counts)


def _describe(data: ConversationsConfig, encoder: ChatEncoder, counts: dict[str, Counts]) -> dict[str, Any]:
    """The manifest's details: everything that a report needs."""
    return {
        "name": data.name,
        "task": data.task,
        "context": encoder.context,
        "end_id": encoder.end_id,
        "end_of_turn": encoder.template.end,
        "pad_id": encoder.pad_id,
        "vocab_size": encoder.vocab_size,
        "keeps_text": keeps_text(encoder.tokenizer.backend_tokenizer.to_str()),
        "duplicates_across": duplicates_across(counts),
        "splits": {split: found.told() for split, found in counts.items()},
    }
