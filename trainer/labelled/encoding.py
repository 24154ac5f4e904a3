"""A labelled data set to its published, encoded form, unless that is in the store already."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from trainer.common.errors import ArtifactError
from trainer.common.progress import Progress
from trainer.config.engines import Engine, RayEngine
from trainer.config.finetuning import FinetuneJob
from trainer.config.labelled import LabelledDataConfig
from trainer.corpus.sources import forgetting_changed
from trainer.corpus.taken_tokenizer import PLAIN_CLASS
from trainer.corpus.tokenizer import TOKENIZER_FILE
from trainer.labelled.blocks import Carry, count_labels, unlabelled, write_split
from trainer.labelled.data import LabelledSet, LabelledSplit, open_labelled
from trainer.labelled.encoded import ENDING, KIND, EncodedSet, open_encoded, open_rows, publish_encoded, tokenizer_paths
from trainer.labelled.encoded_splits import FIRST_TOKENS
from trainer.labelled.sources import LabelledSource, find_labelled
from trainer.labelled.text_encoder import TextEncoder, load_text_encoder
from trainer.labelled.words import Words
from trainer.pretrained.finding import find_model
from trainer.records.holds import hold_reused
from trainer.records.origins import without_test
from trainer.store.manifest import ArtifactRef, digest_file, find_damage, fingerprint, read_manifest
from trainer.store.storage import Store

__all__ = ["EncodedSet", "encode", "find_encoded", "open_encoded", "prepare_encoded", "tokenizer_paths"]

log = logging.getLogger(__name__)

FORMAT = 4


class Encodes(Protocol):
    """What an encoder of any kind says of itself: `digest` names the files of its tokenizer."""

    @property
    def digest(self) -> str: ...


Encoder = TypeVar("Encoder", bound=Encodes)


@dataclass(frozen=True)
class Recipe(Generic[Encoder]):
    """Everything that the bytes depend on, and the key that names it; `options` is what of it is not content.

    `trained` names what training depends on: the same without the test split.
    """

    source: LabelledSource
    encoder: Encoder
    key: str
    trained: str
    options: dict[str, Any]

    def refer(self, size: int, reused: bool = False) -> ArtifactRef:
        """The reference to the published set, by which a run is named after what it trains on."""
        return ArtifactRef(key=self.key, fingerprint=self.trained, size=size, reused=reused)


def encode(job: FinetuneJob, progress: Progress) -> ArtifactRef:
    """Publish the job's encoded data set, or find it published and intact."""
    store = Store(job.store)
    return prepare_encoded(store, job, find_model(store, job.model.pretrained, hub=True).folder, progress)


def find_encoded(store: Store, job: FinetuneJob, model_folder: str | Path) -> ArtifactRef | None:
    """The published, intact data set that the job names, or None. Raises as `prepare_encoded` does for missing input."""
    return find_made(store, job.data.max_bad_records, locate_encoded(store, job, model_folder))


def prepare_encoded(store: Store, job: FinetuneJob, model_folder: str | Path, progress: Progress) -> ArtifactRef:
    """Encode the data set with the model's tokenizer and publish it, or find it published and intact.

    Raises `CorpusError` and `RecordError` for bad input, `TokenizerError` for a tokenizer that cannot be used, `ConfigError`
    for a length beyond the model's positions, `StorageError` if the store refuses.
    """
    data, recipe = job.data, locate_encoded(store, job, model_folder)
    if found := find_made(store, data.max_bad_records, recipe):
        return found
    store.sweep()
    encoder = recipe.encoder
    if encoder.pad_is_end:
        log.info("the tokenizer has no padding token: padding with its end token %r", encoder.pad_token)
    if encoder.divider is not None:
        log.info("the tokenizer puts nothing between the texts of a pair: putting %r there", encoder.divider)
    if encoder.other_class is not None:
        log.warning(
            "beside such a model `AutoTokenizer.from_pretrained` makes %s of the published tokenizer, which puts no space "
            "before words, as the model is trained to read them: load it with `%s.from_pretrained`",
            encoder.other_class, PLAIN_CLASS,
        )  # fmt: skip
    with (
        forgetting_changed(store),
        open_labelled(data, recipe.source, progress) as labelled,
        store.staging(key=recipe.key) as folder,
    ):
        _warn_of_unlabelled(data, labelled)
        encoder.save(folder)
        total = sum(map(len, labelled.splits.values()))
        with _carry(job.engine, store) as carry, progress.bar(f"encode {data.name}", total, "example") as bar:
            figures = {
                split: write_split(folder / f"{split}{ENDING}", examples, encoder, f"{data.name}: {split}", bar.advance, carry)
                for split, examples in labelled.splits.items()
            }
        counts = {split: _count(folder, split, examples, labelled.classes) for split, examples in labelled.splits.items()}
        details = _describe(data, labelled, encoder, {split: {**figures[split], **counts[split]} for split in counts})
        details["tokenizer_sha256"] = digest_file(folder / TOKENIZER_FILE).sha256
        paths = {split: [part.path for part in parts] for split, parts in recipe.source.parts.items()}
        told = {"validation_cut": recipe.source.cut, "paths": paths, "recipe": recipe.options}
        details["source"] = {"identity": recipe.source.identity, **told}
        manifest = publish_encoded(store, folder, recipe.key, details)
    log.info("%s: %s", data.name, describe_columns(details))
    _warn_of_unseen(details)
    return recipe.refer(manifest.size())


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


def locate_encoded(store: Store, job: FinetuneJob, model_folder: str | Path) -> Recipe[TextEncoder]:
    """Where the job's encoded set belongs, and what it is made from; raises as `prepare_encoded` does for missing input."""
    data = job.data
    encoder = load_text_encoder(model_folder, data)
    source = find_labelled(store, data)
    places = {"name", "path", "subset", "train", "validation", "test", "delimiter", "quoting", "max_bad_records"}
    # Sets of one label an example are named as before there could be several.
    several = set() if data.task == "multi-label" else {"label_columns", "label_separator"}
    options = data.model_dump(exclude={*places, *several, "max_length", "validation_fraction"})
    cut = data.validation_fraction if source.cut else None
    # Where texts are cut on the left, a word that lost its first token had a label once.
    apart = ["whole words"] if encoder.by_words and encoder.cuts_left else []
    name, trained = (
        fingerprint([FORMAT, options, identity, cut, encoder.digest, encoder.max_length, *apart])
        for identity in (source.identity, without_test(source.identity))
    )
    told = {**options, "format": FORMAT, "quoting": data.quoting, "validation_fraction": cut, "max_length": encoder.max_length}
    return Recipe(source, encoder, f"encoded/{data.name}-{name}", trained, {**told, "tokenizer": encoder.digest})


def find_made(store: Store, max_bad_records: int, recipe: Recipe[Any]) -> ArtifactRef | None:
    """The published, intact set of a recipe, or None; also if more of its records are bad than may be skipped now."""
    key = recipe.key
    try:
        manifest = read_manifest(store, key, KIND)
    except ArtifactError as error:
        log.warning("%s: it is to be made anew", error)
        return None
    if manifest is None:
        return None
    if any(split["bad_records"] > max_bad_records for split in manifest.details["splits"].values()):
        return None  # making it anew names the record that may no longer be passed over
    for file, problem in (damage := find_damage(store, key, manifest)).items():
        log.warning("%s/%s %s: the data set is to be made anew", store.path(key), file, problem)
    if damage or not hold_reused(store, key):
        return None
    return recipe.refer(manifest.size(), reused=True)


def _warn_of_unlabelled(data: LabelledDataConfig, labelled: LabelledSet) -> None:
    for split, found in labelled.splits.items():
        if 0 < (missing := int(unlabelled(found.labels).sum())) < len(found):
            log.warning(
                "data set %s: %d of %d examples of the %s split have no label: all are predicted, and the figures are of the "
                "%d others",
                data.name, missing, len(found), split, len(found) - missing,
            )  # fmt: skip


def _warn_of_unseen(details: dict[str, Any]) -> None:
    for name, split in details["splits"].items():
        if unseen := split.get("unseen_words"):
            log.warning(
                "data set %s: the model does not see %d of %d words of the %s split: they are beyond %d tokens, or have none; "
                "they are neither trained on nor measured",
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
