"""New texts for a finished model, and predictions already made of them; no heavy imports.

predictions/NAME-FINGERPRINT/predictions.jsonl     id, prediction and probabilities of each text
predictions/NAME-FINGERPRINT/manifest.json         the model, the files of texts, and counts
"""

import logging
from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import compress, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainer.common.bad_records import BadRecords, check_budget, describe_bad
from trainer.common.display import count, plural
from trainer.common.errors import ConfigError, CorpusError
from trainer.common.progress import Progress
from trainer.common.temporary import temporary_folder
from trainer.config.labelled import LabelledDataConfig, PredictJob, as_labelled
from trainer.data.encoded import in_data
from trainer.data.labelled.examples import lacks_column
from trainer.data.labelled.rows import Example, columns_of, errors_of, read_rows, reading_of, skip_repeats
from trainer.data.splits import TRAIN, Part, SplitSource, bad_records, fetch_part, find_splits, look_at_columns
from trainer.models.pretrained import (
    Checkpoint,
    architectures_of,
    classifies_words,
    find_model,
    outputs_depend_on_batch,
)
from trainer.records.results import PredictedTexts
from trainer.records.run_names import run_at
from trainer.records.sealed import read_sealed
from trainer.records.steps import CONTENTS, Step, find_artifact
from trainer.store.manifest import Input, Manifest, fingerprint, read_manifest
from trainer.store.names import CONFIG
from trainer.store.storage import Store

log = logging.getLogger(__name__)


FORMAT = 4
KIND = "predictions"
FILE = "predictions.jsonl"


class Wanted(NamedTuple):
    """The model that predicts, the texts and how to read them, and the recipe of its predictions of these texts."""

    model: Checkpoint
    data: LabelledDataConfig
    source: SplitSource
    recipe: dict[str, Any]


def identify_predictions(store: Store, job: PredictJob) -> Wanted:
    """The predictions that a job requests, whether or not they exist.

    Raises `ArtifactError` if the model is missing or damaged, `CorpusError` for files that do not exist, `ConfigError`
    if the columns that the model reads are unknown, or the model cannot predict.
    """
    found = find_model(store, job.model, hub=True)
    by_words = classifies_words(architectures_of(found.folder))
    if by_words and job.data.source == "csv":
        raise ConfigError(
            f"{job.model} labels words and reads lists of words, but data.source is csv, which has no lists: use jsonl "
            "or parquet files with a list of words in each row"
        )
    data = as_labelled(job, _text_columns(store, job, found), by_words)
    source = find_splits(store, data)
    options = data.model_dump(include={"source", "quoting", "columns", "text_columns", "id_column", "max_length"})
    contents = {"model": found.files, "text": fingerprint(source.identity[TRAIN])}
    recipe = {"format": FORMAT, **in_data(options), "precision": job.precision, CONTENTS: contents}
    if outputs_depend_on_batch(found.folder):
        recipe["batch"] = job.batch
    return Wanted(found, data, source, recipe)


def predictions_step(store: Store, job: PredictJob, wanted: Wanted) -> Step:
    """The step of predictions, which all ranks make together: `predict_texts`."""
    run = run_at(store, wanted.model.key)
    inputs = {"model": Input(key=run, content="")} if run else {}
    return Step(
        store, KIND, KIND, job.name, wanted.recipe, inputs=inputs, recorded_only=frozenset(inputs),
        fixes_content=False,
        accept=lambda manifest: check_budget(f"predictions {job.name!r}", job.data.max_bad_records, manifest.details),
    )  # fmt: skip


def find_predictions(step: Step) -> PredictedTexts | None:
    """Published predictions of this step, if they are intact."""
    found = find_artifact(step)
    manifest = read_manifest(step.store, step.key, KIND) if found else None
    return summarise(step.key, manifest, reused=True) if manifest else None


def summarise(key: str, manifest: Manifest, reused: bool = False) -> PredictedTexts:
    """The manifest of predictions as the value that tasks return."""
    facts = {field: manifest.details[field] for field in ("texts", "bad_records", "truncated", "predicted")}
    facts |= {
        field: manifest.details[field] for field in ("words", "unseen_words", "skipped") if field in manifest.details
    }
    model = manifest.details["model"]["name"]
    return PredictedTexts(
        key=key, fingerprint=manifest.fingerprint, size=manifest.size(), model=model, reused=reused, **facts
    )  # fmt: skip


def describe(store: Store, made: PredictedTexts) -> str:
    """The path of the predictions and a summary of them, for people."""
    counted = ", ".join(f"{name} {_shown(value)}" for name, value in made.predicted.items())
    skipped = f"; skipped {describe_bad(made.bad_records, made.skipped)}" if made.bad_records else ""
    cut = f"; {plural(made.truncated, 'text')} truncated to the model's maximum length" if made.truncated else ""
    unseen = f"; {plural(made.unseen_words, 'word')} of {count(made.words)} got no label" if made.unseen_words else ""
    lines = [f"{plural(made.texts, 'text')}: {counted}{skipped}{cut}{unseen}"]
    return "\n".join([*lines, f"predictions {store.path(made.key)}/{FILE}{'  (reused)' if made.reused else ''}"])


def _shown(value: float) -> str:
    """A count in full, or a number with six significant digits."""
    return count(value) if value.is_integer() and 0 <= value < 2**53 else f"{value:,.6g}"


def _text_columns(store: Store, job: PredictJob, found: Checkpoint) -> list[str]:
    """The columns that hold the texts: those given, else those that the model was trained on."""
    trained = _trained_columns(store, job, found)
    given = job.data.text_columns
    if given is None and trained is None:
        raise ConfigError(
            f"{job.model} does not belong to a run in this store: set data.text_columns to the columns that hold texts"
        )
    if given is not None and trained is not None and len(given) != len(trained):
        kinds = ["single texts", "pairs of texts"]
        raise ConfigError(
            f"{job.model} was trained on {kinds[len(trained) - 1]} ({', '.join(trained)}), but data.text_columns lists "
            f"{', '.join(given)}; list {len(trained)}"
        )
    return given or trained or []


def _trained_columns(store: Store, job: PredictJob, found: Checkpoint) -> list[str] | None:
    """The text columns of the run that made a model; None for a model that does not belong to a run of this store."""
    run = run_at(store, found.key)
    config: Any = read_sealed(store, f"{run}/{CONFIG}") if run else None
    if config is None:
        return None
    columns: list[str] | None = config["job"]["data"].get("text_columns")
    if columns is None:
        raise ConfigError(
            f"{job.model} is a language model, which predicts no classes; fine-tune it on labelled data first"
        )
    return columns


class NewTexts(NamedTuple):
    """Checked files, or at most `most` rows of each: `good` are the rows that are predicted, of shape [rows], `bad` the
    others; `ends` are the rows where the files begin and the last one ends.
    """

    data: LabelledDataConfig
    parts: list[Part]
    most: int | None
    good: NDArray[np.bool_]
    ends: list[int]
    bad: BadRecords

    @property
    def counts(self) -> list[int]:
        """The number of good rows in each file."""
        return [int(self.good[start:end].sum()) for start, end in pairwise(self.ends)]

    def skip(self, problems: Mapping[int, str]) -> None:
        """Skip good rows, given by their numbers with what is wrong. Raises `RecordError` if they may not be skipped,
        `CorpusError` if no row is left.
        """
        if problems:
            self.bad.add_all(len(problems), errors_of(self.data, self.parts, problems, self.most))
            self.good[list(problems)] = False
            self.require_some()

    def require_some(self) -> None:
        """Raise `CorpusError` if there are no good rows."""
        if not self.good.any():
            raise CorpusError(
                f"data set {self.data.name!r} is empty: {self.bad.count} records, {self.bad.count} of them bad; check "
                f"that {', '.join(part.name for part in self.parts)} is the right data"
            )

    def examples(self) -> Iterator[Example]:
        """The good rows in the order of files and rows, read again at each call. An id is the id column's value, else
        the row's number.
        """
        for number, row in compress(enumerate(read_rows(self.data, self.parts, self.most)), self.good):
            yield row.example(number)


@contextmanager
def open_texts(
    data: LabelledDataConfig, parts: Sequence[Part], progress: Progress, most: int | None = None
) -> Iterator[NewTexts]:
    """Check all rows, or at most `most` of each file; the texts can be read inside the `with` block.

    Raises `CorpusError` for a missing column or files without a text, and `RecordError` for the first bad row beyond
    those that may be skipped; a row with the id of an earlier one is bad.
    """
    with temporary_folder() as folder:
        fetched = [fetch_part(part, Path(folder)) for part in parts]
        _check_columns(data, fetched)
        bad, is_good, ids, ends = bad_records(data, None), array("b"), array("Q"), [0]
        with progress.bar(f"read {data.name}", None, "row") as bar:
            for part in fetched:
                for row in read_rows(data, [part], most, watch=True):
                    if row.wrong is not None:
                        bad.add(row.wrong)
                    is_good.append(row.wrong is None)
                    ids.append(row.digest_of_id())
                    bar.advance(1)
                ends.append(len(ids))
        good = np.array(is_good, dtype=bool) & ~skip_repeats(data, fetched, ids, bad, most)
        texts = NewTexts(data, fetched, most, good, ends, bad)
        texts.require_some()
        if bad.count:
            log.warning("data set %s: skipped %s", data.name, bad.describe())
        yield texts


def _check_columns(data: LabelledDataConfig, parts: Sequence[Part]) -> None:
    for part in parts:
        columns = look_at_columns(part, reading_of(data)).names
        if missing := [each for each in columns_of(data) if each != data.label_column and each not in columns]:
            raise lacks_column(data, part, missing[0], columns)
