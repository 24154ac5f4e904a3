"""Conversations to their published, encoded form, unless that is in the store already."""

import logging
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from trainer.chat.data import duplicates_across, read_encoded, require_conversations
from trainer.chat.encoded import ChatWriter
from trainer.chat.encoder import ChatEncoder, load_chat_encoder
from trainer.chat.records import Counts
from trainer.common.progress import Progress
from trainer.config.chat import ChatDataConfig, ChatJob
from trainer.corpus.sources import forgetting_changed
from trainer.corpus.tokenizer import TOKENIZER_FILE, keeps_text
from trainer.labelled.encoded import publish_encoded
from trainer.labelled.encoding import Recipe, find_made
from trainer.labelled.scan import bad_records
from trainer.labelled.sources import TRAIN, VALIDATION, LabelledSource, find_labelled
from trainer.pretrained.finding import find_model
from trainer.records.origins import without_test
from trainer.store.manifest import ArtifactRef, digest_file, fingerprint
from trainer.store.storage import Store

log = logging.getLogger(__name__)

FORMAT = 3


def encode_conversations(job: ChatJob, progress: Progress) -> ArtifactRef:
    """Publish the job's encoded conversations, or find them published and intact."""
    store = Store(job.store)
    return prepare_conversations(store, job, find_model(store, job.model.pretrained, hub=True).folder, progress)


def find_conversations(store: Store, job: ChatJob, model_folder: str | Path) -> ArtifactRef | None:
    """The published, intact set that the job names, or None. Raises as `prepare_conversations` does for missing input."""
    return find_made(store, job.data.max_bad_records, locate_conversations(store, job, model_folder))


def prepare_conversations(store: Store, job: ChatJob, model_folder: str | Path, progress: Progress) -> ArtifactRef:
    """Encode the conversations with the model's tokenizer and publish them, or find them published and intact.

    Raises `CorpusError` and `RecordError` for bad input, `TokenizerError` for a tokenizer or a template that cannot be used,
    `ConfigError` for a context beyond the model's positions, `StorageError` if the store refuses.
    """
    recipe = locate_conversations(store, job, model_folder)
    if found := find_made(store, job.data.max_bad_records, recipe):
        return found
    store.sweep()
    with forgetting_changed(store), store.staging(key=recipe.key) as folder:
        recipe.encoder.save(folder)
        counts = _write(job, recipe.source, recipe.encoder, folder, progress)
        tell(job, counts)
        details = _describe(job, recipe.encoder, counts)
        details["tokenizer_sha256"] = digest_file(folder / TOKENIZER_FILE).sha256
        paths = {split: [part.path for part in parts] for split, parts in recipe.source.parts.items()}
        told = {"validation_cut": recipe.source.cut, "paths": paths, "recipe": recipe.options}
        details["source"] = {"identity": recipe.source.identity, **told}
        manifest = publish_encoded(store, folder, recipe.key, details)
    return recipe.refer(manifest.size())


def locate_conversations(store: Store, job: ChatJob, model_folder: str | Path) -> Recipe[ChatEncoder]:
    """Where the job's set belongs, and what it is made from; raises as `prepare_conversations` does for missing input."""
    data = job.data
    encoder = load_chat_encoder(model_folder, data)
    source = find_labelled(store, data)
    cut = data.validation_fraction if source.cut else None
    asked = {"task": data.task, "source": data.source, "validation_fraction": cut}
    options = {**asked, "format": FORMAT, "context": encoder.context}
    name, trained = (
        fingerprint([options, identity, encoder.digest]) for identity in (source.identity, without_test(source.identity))
    )
    return Recipe(source, encoder, f"encoded/{data.name}-{name}", trained, {**options, "tokenizer": encoder.digest})


def count_conversations(job: ChatJob, source: LabelledSource, encoder: ChatEncoder, progress: Progress) -> dict[str, Counts]:
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
                "data set %s, %s split: conversations that are longer than data.context and lose their end: %d; left out, as "
                "no answer is left of them: %d", name, split, found.truncated, found.unanswered,
            )  # fmt: skip
        if found.unmarked:
            log.warning(
                "data set %s, %s split: answers that the chat template does not mark by {%% generation %%}, so that these are "
                "not learnt: %d", name, split, found.unmarked,
            )  # fmt: skip
    if duplicates := duplicates_across(counts):
        log.warning(
            "data set %s: %d of %d questions of the validation split are in train as well, so validation figures will flatter",
            name, duplicates, len(counts[VALIDATION].questions),
        )  # fmt: skip


def empty_counts(data: ChatDataConfig, source: LabelledSource) -> dict[str, Counts]:
    """Counts of nothing yet, of the splits that there will be."""
    splits = [TRAIN, VALIDATION, *(split for split in source.parts if split not in (TRAIN, VALIDATION))]
    return {split: Counts(bad_records(data, split)) for split in splits}


def _write(job: ChatJob, source: LabelledSource, encoder: ChatEncoder, folder: Path, progress: Progress) -> dict[str, Counts]:
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
