"""The step that encodes a labelled data set."""

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from trainer.common.bad_records import describe_bad
from trainer.common.errors import RecordError
from trainer.common.progress import Progress
from trainer.config.chat import ChatDataConfig
from trainer.config.engines import Engine, RayEngine
from trainer.config.labelled import FinetuneJob, LabelledDataConfig
from trainer.data.labelled.blocks import Carry, count_labels, unlabelled, write_split
from trainer.data.labelled.encoded import ENDING, FIRST_TOKENS, KIND, open_rows
from trainer.data.labelled.examples import LabelledSet, LabelledSplit, open_labelled
from trainer.data.labelled.sources import LabelledSource, find_labelled
from trainer.data.labelled.text_encoder import TextEncoder, load_text_encoder
from trainer.data.labelled.words import Words
from trainer.data.sources import forgetting_changed
from trainer.models.pretrained import find_model
from trainer.models.taken_tokenizer import PLAIN_CLASS
from trainer.models.tokenizer import TOKENIZER_FILE
from trainer.records.basis import labelled_digests, without_test
from trainer.records.steps import CONTENTS, Explains, Sources, Step, publish
from trainer.store.manifest import Manifest, digest_file, fingerprint, name_of
from trainer.store.storage import Store

log = logging.getLogger(__name__)


FORMAT = 5


class Encodes(Protocol):
    """What an encoder of any kind says of itself: `digest` names the files of its tokenizer."""

    @property
    def digest(self) -> str: ...


def encode(store: Store, job: FinetuneJob, progress: Progress, model_folder: str | Path | None = None) -> Step:
    """The step that encodes the job's data set with the model's tokenizer; the model's folder is looked for unless it
    is given.

    It raises `CorpusError` and `RecordError` for bad input, `TokenizerError` for a tokenizer that cannot be used,
    `ConfigError` for a length beyond the model's positions, `StorageError` if the store refuses.
    """
    data = job.data
    folder = model_folder or find_model(store, job.model.pretrained, hub=True).folder
    encoder, source = load_text_encoder(folder, data), find_labelled(store, data)
    options = data.model_dump(exclude={*PLACES, "validation_fraction"})
    options |= {"quoting": data.quoting, "max_length": encoder.max_length}
    recipe = {"format": FORMAT, **in_data(options)}
    return encoded_step(store, data, source, encoder, recipe, partial(_build, job, progress))


PLACES = {"name", "path", "subset", "train", "validation", "test", "delimiter", "quoting", "max_bad_records"}
"""Settings that say where records lie, or are part of what the files are known by."""

EncodedData = LabelledDataConfig | ChatDataConfig
Build = Callable[[Step, LabelledSource, Any], Manifest]


def in_data(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options by their places in a configuration."""
    return {f"data.{name}": value for name, value in options.items()}


def encoded_step(
    store: Store, data: EncodedData, source: LabelledSource, encoder: Encodes, options: Mapping[str, Any], build: Build
) -> Step:
    """The step that encodes what a job reads of its files, by an encoder; a run is named by all of it but the test
    split.
    """
    cut = data.validation_fraction if source.cut else None
    told = frozenset({"data.quoting"})

    def recipe_of(identity: Any) -> dict[str, Any]:
        contents = {"text": fingerprint(identity)}
        return {**options, "data.validation_fraction": cut, "the model's tokenizer": encoder.digest, CONTENTS: contents}

    trained = name_of(recipe_of(without_test(source.identity)), {}, told)
    paths = {split: [part.path for part in parts] for split, parts in source.parts.items()}

    def accept(manifest: Manifest) -> None:
        for split, found in manifest.details["splits"].items():
            check_budget(f"data set {data.name!r}, {split} split", data.max_bad_records, found)

    def recall_sources(key: str, manifest: Manifest) -> Sources:
        told = manifest.details["source"]
        return labelled_digests(told["identity"], told["paths"])

    return Step(
        store, KIND, KIND, data.name, recipe_of(source.identity),
        lambda step: build(step, source, encoder), told=told, identity=trained, accept=accept,
        explains=Explains(
            sources=lambda: labelled_digests(source.identity, paths), recall_sources=recall_sources, by_content=True,
        ),
    )  # fmt: skip


def check_budget(what: str, most: int, found: Mapping[str, Any]) -> None:
    """Raise `RecordError` if more records were bad, as a manifest tells of a split, than may be skipped."""
    if (bad := found["bad_records"]) > most:
        raise RecordError(
            f"{what}: at most {most} bad records may be skipped, but {describe_bad(bad, found.get('skipped', []))}; "
            "mend the file or raise data.max_bad_records"
        )


def describe_source(source: LabelledSource) -> dict[str, Any]:
    """What an encoded set's manifest says of the files that it was read from."""
    paths = {split: [part.path for part in parts] for split, parts in source.parts.items()}
    return {"identity": source.identity, "validation_cut": source.cut, "paths": paths}


def _build(job: FinetuneJob, progress: Progress, step: Step, source: LabelledSource, encoder: TextEncoder) -> Manifest:
    data, store = job.data, step.store
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
    with (
        forgetting_changed(store),
        open_labelled(data, source, progress) as labelled,
        store.staging(key=step.key) as folder,
    ):
        _warn_of_unlabelled(data, labelled)
        encoder.save(folder)
        total = sum(map(len, labelled.splits.values()))
        with _carry(job.engine, store) as carry, progress.bar(f"encode {data.name}", total, "example") as bar:
            figures = {
                split: write_split(
                    folder / f"{split}{ENDING}", examples, encoder, f"{data.name}: {split}", bar.advance, carry
                )
                for split, examples in labelled.splits.items()
            }
        counts = {
            split: _count(folder, split, examples, labelled.classes) for split, examples in labelled.splits.items()
        }
        details = _describe(data, labelled, encoder, {split: {**figures[split], **counts[split]} for split in counts})
        details["tokenizer_sha256"] = digest_file(folder / TOKENIZER_FILE).sha256
        manifest = publish(step, folder, {**details, "tokenizer": encoder.digest, "source": describe_source(source)})
    log.info("%s: %s", data.name, describe_columns(details))
    _warn_of_unseen(details)
    return manifest


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
