"""The step that encodes a labelled data set."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from trainer.common.progress import Progress
from trainer.config.engines import Engine, RayEngine
from trainer.config.labelled import FinetuneJob, LabelledDataConfig
from trainer.data.encoded import ENDING, PLACES, encoded_step, in_data, open_rows
from trainer.data.labelled.blocks import Carry, count_labels, unlabelled, write_split
from trainer.data.labelled.encoded import FIRST_TOKENS
from trainer.data.labelled.examples import LabelledSet, LabelledSplit, open_labelled
from trainer.data.labelled.text_encoder import TextEncoder, load_text_encoder
from trainer.data.labelled.words import Words
from trainer.data.splits import SplitSource, find_splits
from trainer.models.pretrained import find_model
from trainer.models.taken_tokenizer import PLAIN_CLASS
from trainer.records.steps import Step
from trainer.store.storage import Store

log = logging.getLogger(__name__)


FORMAT = 6


def encode(store: Store, job: FinetuneJob, progress: Progress, model_folder: str | Path | None = None) -> Step:
    """The step that encodes the job's data set with the model's tokenizer; the model's folder is looked for unless it
    is given.

    It raises `CorpusError` and `RecordError` for bad input, `TokenizerError` for a tokenizer that cannot be used,
    `ConfigError` for a length beyond the model's positions, `StorageError` if the store refuses.
    """
    data = job.data
    folder = model_folder or find_model(store, job.model.pretrained, hub=True).folder
    encoder, source = load_text_encoder(folder, data), find_splits(store, data)
    options = data.model_dump(exclude={*PLACES, "validation_fraction"})
    options |= {"quoting": data.quoting, "max_length": encoder.max_length}
    recipe = {"format": FORMAT, **in_data(options)}
    return encoded_step(store, data, source, encoder, recipe, partial(_write, store, job, progress, source, encoder))


def _write(
    store: Store, job: FinetuneJob, progress: Progress, source: SplitSource, encoder: TextEncoder, folder: Path
) -> dict[str, Any]:
    """Write the splits of the job's data into a folder; returns the manifest's details."""
    data = job.data
    _tell_of_tokenizer(encoder)
    with open_labelled(data, source, progress) as labelled:
        _warn_of_unlabelled(data, labelled)
        total = sum(map(len, labelled.splits.values()))
        with _carry(job.engine, store) as carry, progress.bar(f"encode {data.name}", total, "example") as bar:
            figures = {
                split: write_split(folder, split, examples, encoder, f"{data.name}: {split}", bar.advance, carry)
                for split, examples in labelled.splits.items()
            }
        for split, examples in labelled.splits.items():
            figures[split] |= _count(folder, split, examples, labelled.classes)
        details = _describe(data, labelled, encoder, figures)
    log.info("%s: %s", data.name, describe_columns(details))
    _warn_of_unseen(details)
    return details


def _tell_of_tokenizer(encoder: TextEncoder) -> None:
    if encoder.pad_is_end:
        log.info("the tokenizer has no padding token: padding with its end token %r", encoder.pad_token)
    if encoder.divider is not None:
        log.info("the tokenizer puts nothing between the texts of a pair: putting %r there", encoder.divider)
    if encoder.other_class is not None:
        log.warning(
            "beside such a model `AutoTokenizer.from_pretrained` makes %s of the published tokenizer, which puts no "
            "space before words, as the model is trained to read them: load it with `%s.from_pretrained`",
            encoder.other_class, PLAIN_CLASS,
        )  # fmt: skip


@contextmanager
def _carry(engine: Engine, store: Store) -> Iterator[Carry]:
    """Who encodes blocks of examples: this process, or tasks of a cluster."""
    if isinstance(engine, RayEngine):
        from trainer.engines.ray_tasks import ray_tasks

        with ray_tasks(engine, store) as tasks:
            yield tasks.map
    else:
        yield map


def describe_columns(details: dict[str, Any]) -> str:
    """What became of the data set's columns, in one line."""
    texts, dropped = " and ".join(details["text_columns"]), ", ".join(details["dropped_columns"]) or "none"
    return f"text from {texts}; {details['label_column']} became labels; dropped: {dropped}"


def _warn_of_unlabelled(data: LabelledDataConfig, labelled: LabelledSet) -> None:
    for split, found in labelled.splits.items():
        if 0 < (missing := int(unlabelled(found.labels).sum())) < len(found):
            log.warning(
                "data set %s: %d of %d examples of the %s split have no label: all are predicted, and the figures are "
                "of the %d others",
                data.name, missing, len(found), split, len(found) - missing,
            )  # fmt: skip


def _warn_of_unseen(details: dict[str, Any]) -> None:
    for name, split in details["splits"].items():
        if unseen := split.get("unseen_words"):
            log.warning(
                "data set %s: the model does not see %d of %d words of the %s split: they are beyond %d tokens, or "
                "have none; they are neither trained on nor measured",
                details["name"], unseen, split["words"], name, details["max_length"],
            )  # fmt: skip


def _count(folder: Path, split: str, examples: LabelledSplit, classes: list[str] | None) -> dict[str, Any]:
    """What `count_labels` tells of a split that was written, of words those that the model sees."""
    if examples.labels.dtype != object:
        return count_labels(examples.labels, classes)
    words = Words(open_rows(folder / f"{split}{ENDING}")[FIRST_TOKENS])
    return count_labels(examples.labels, classes, words.seen[words.of_examples(~unlabelled(examples.labels))])


def _describe(
    data: LabelledDataConfig, labelled: LabelledSet, encoder: TextEncoder, figures: dict[str, dict[str, Any]]
) -> dict[str, Any]:
    """The manifest's details: everything that a report needs."""
    return {
        "name": data.name,
        "task": data.task,
        "classes": labelled.classes,
        "text_columns": data.text_columns,
        "label_column": ", ".join(data.columns_of_labels),
        "dropped_columns": labelled.dropped,
        "max_length": encoder.max_length,
        "pad_token": encoder.pad_token,
        "pad_id": encoder.pad_id,
        "pad_is_end": encoder.pad_is_end,
        "divider": encoder.divider,
        **({"tokenizer_class": PLAIN_CLASS} if encoder.other_class is not None else {}),
        "vocab_size": encoder.vocab_size,
        "duplicates_across": labelled.duplicates,
        "splits": {split: {**figures[split], **found.bad.told()} for split, found in labelled.splits.items()},
    }
