"""Measuring a fine-tuned model: figures on the labelled splits, and predictions of all splits but train.

runs/X/eval.json                          figures, confusion matrix, figures by class
runs/X/predictions/validation.jsonl       id, prediction and probabilities of each example, or of each of its words
runs/X/predictions/test.jsonl
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

from trainer.common.errors import ConfigError
from trainer.common.progress import Progress
from trainer.config.labelled import FinetuneJob
from trainer.data.encoded import require_tokenizer
from trainer.data.labelled.encoded import EncodedSet, EncodedSplit, EncodedWords, open_encoded
from trainer.data.labelled.encoding import encode_files
from trainer.data.labelled.text_encoder import load_text_encoder
from trainer.data.splits import TEST, TRAIN, VALIDATION
from trainer.evaluation.builtin_metrics import marks_entities, score_entities
from trainer.evaluation.decontamination import clean_of_splits
from trainer.evaluation.measurement import PREDICTED, Measurement, check_asked, predictions_key
from trainer.evaluation.metrics import has_positive, metric_identity
from trainer.kinds.labelled.kind import NewFiles
from trainer.kinds.labelled.measure import (
    decide,
    labelled_rows,
    metric_names,
    positive_figures,
    predict,
    score,
    split_lines,
)
from trainer.models.causal import check_one_scale, check_positions
from trainer.models.classifiers import load_classifier, outline_classifier, task_of
from trainer.models.pretrained import Checkpoint, load_config
from trainer.records.basis import OF_CLASS, ExamplesBasis, basis_by_split, examples_basis
from trainer.records.evaluations import Classification, ClassScore, CleanOf, Result, Scores
from trainer.records.run_names import run_at
from trainer.store.manifest import digest_file
from trainer.store.storage import Store
from trainer.training.parallelize import place_measured
from trainer.training.runtime import Runtime
from trainer.training.sharding import sharding_group

MATRIX_CLASSES = 1000
"""Most classes of which eval.json holds a confusion matrix, which then has a million numbers."""


def classify_split(data: EncodedSplit, predicted: NDArray[Any], names: Sequence[str]) -> Classification:
    """The figures of each class, or of each entity type that word labels mark, on the labelled examples."""
    examples, rows = np.flatnonzero(data.labelled), labelled_rows(data)
    sides = (predicted[rows], data.labels[rows])
    if not (isinstance(data, EncodedWords) and marks_entities(names)):
        return classify(*sides, names)
    # There is no matrix: an entity is found or not.
    answered, true = (data.named(examples, each, names) for each in sides)
    return Classification(confusion=[], classes=_scores(score_entities(answered, true, names)))


def classify(predicted: NDArray[Any], labels: NDArray[Any], names: Sequence[str]) -> Classification:
    """The confusion matrix (rows are labels, columns predictions) and each class's precision, recall, F1 and support.

    There is no matrix if several classes may apply, because a mistake then does not replace one class by another, and
    none for more than `MATRIX_CLASSES`.
    """
    classes = list(range(len(names)))
    has_matrix = labels.ndim == 1 and len(names) <= MATRIX_CLASSES
    figures = precision_recall_fscore_support(labels, predicted, labels=classes, zero_division=0.0)
    return Classification(
        confusion=confusion_matrix(labels, predicted, labels=classes).tolist() if has_matrix else [],
        classes=_scores(zip(names, *figures, strict=True)),
    )


def _scores(figures: Iterable[tuple[str, Any, Any, Any, Any]]) -> list[ClassScore]:
    return [
        ClassScore(name=name, precision=float(precision), recall=float(recall), f1=float(f1), support=int(support))
        for name, precision, recall, f1, support in figures
    ]


GIVEN = {"multi-label": "several labels per text", "tokens": "one label per word"}
"""The labels of a text, by task; other tasks have one label per text."""


def measure_labelled(measurement: Measurement, progress: Progress, runtime: Runtime) -> Result:
    """Score a model on the labelled splits of a run's set, or on new files. Called by every rank.

    Predictions are written only for the run's own final model. Another model must have the same tokenizer and classes.
    Raises `TokenizerError` or `ConfigError` if the model cannot read this data, `ArtifactError` if the data is missing.
    """
    if isinstance(measurement.settings, NewFiles):
        return _measure_files(measurement.settings, measurement, progress, runtime)
    job: FinetuneJob = measurement.settings
    store, (encoded,) = Store(job.store), measurement.data
    data = open_encoded(store, encoded)
    if not measurement.is_own:
        _check_reads(measurement.model, data)
    clean_of = runtime.on_first(lambda: _clean_of(store, measurement.model, data))  # before long work, as it may raise
    found = _score(store, job, measurement, data, runtime, progress)
    write = partial(_write_predictions, store, measurement, data, found.logits)
    files = runtime.on_first(write) if measurement.is_own else {}
    return measurement.result(**_result_fields(job, data, found, VALIDATION), predictions=files, clean_of=clean_of)


def _measure_files(new: NewFiles, measurement: Measurement, progress: Progress, runtime: Runtime) -> Result:
    with open_files(new, progress) as data:
        found = _score(Store(new.job.store), new.job, measurement, data, runtime, progress)
        return measurement.result(**_result_fields(new.job, data, found, TEST), files=names_of_files(new))


@contextmanager
def open_files(new: NewFiles, progress: Progress) -> Iterator[EncodedSet]:
    """Encode the new labelled files for the duration of a `with` block."""
    data = new.job.data
    encoder = load_text_encoder(new.folder, data, finished=True)
    with encode_files(data, new.files, encoder, data.label_columns or data.classes, progress) as found:
        yield found


def names_of_files(new: NewFiles) -> list[str]:
    """The names of these files."""
    return [part.name for part in new.files.parts[TRAIN]]


class Found(NamedTuple):
    """A model's output on a set: figures and class figures of the labelled splits, and the logits of each split."""

    groups: dict[str, Scores]
    classification: dict[str, Classification]
    logits: dict[str, NDArray[np.float32]]


def _score(
    store: Store, job: FinetuneJob, measurement: Measurement, data: EncodedSet, runtime: Runtime, progress: Progress
) -> Found:
    """Score a model on a set; splits without labels are predicted only for the run's own final model."""
    folder, own, found = Path(measurement.model.folder), measurement.is_own, Found({}, {}, {})
    splits = [split for split in PREDICTED if split in data.splits and (own or data.splits[split].labelled.any())]
    with ExitStack() as stack:
        stack.enter_context(sharding_group(job.training, runtime))
        model = place_measured(
            job.training, runtime, partial(outline_classifier, job, data.details, folder),
            partial(load_classifier, store, job, data.details, folder, measurement.model.beside),
        )  # fmt: skip
        bar = stack.enter_context(progress.bar("evaluate", sum(len(data.splits[split]) for split in splits), "example"))
        for split in splits:
            examples = data.splits[split]
            logits = found.logits[split] = predict(model, examples, job.evaluation.batch, runtime, bar.advance)
            if examples.labelled.any():
                found.groups[split] = Scores(figures=score(logits, data, split, job, runtime))
                if data.details["classes"] and np.isfinite(logits[labelled_rows(examples)]).all():
                    found.classification[split] = classify_split(
                        examples, decide(logits, data), data.details["classes"]
                    )
    return found


def _result_fields(job: FinetuneJob, data: EncodedSet, found: Found, judged: str) -> dict[str, Any]:
    """The figures, and the data that those of the `judged` split and of the others are measured on."""
    measured = {figure for scores in found.groups.values() for figure in scores.figures}
    positive = positive_figures(job, data.details["classes"])
    return {
        "by": "split",
        "groups": found.groups,
        "classification": found.classification,
        "measured_on": basis_by_split(partial(_basis, job, data), found.groups, judged),
        "positive": {figure: name for figure, name in sorted(positive.items()) if figure in measured},
    }


def _basis(job: FinetuneJob, data: EncodedSet, split: str) -> ExamplesBasis:
    """What the figures of a split are measured on."""
    positive = job.evaluation.positive_class
    of_class = "" if positive is None else f"{OF_CLASS}{positive}"
    metrics = [
        metric_identity(name) + (of_class if has_positive(name) else "")
        for name in metric_names(job, data.details["classes"])
    ]
    return examples_basis(data.details, job.data.model_dump(), split, metrics, job.training.precision)


def _clean_of(store: Store, found: Checkpoint, data: EncodedSet) -> CleanOf | None:
    """The evaluation text that the run's training text was cleaned of, if it covers all the measured data."""
    run = run_at(store, found.key)
    return clean_of_splits(store, run, data.details, data.details["text_columns"]) if run else None


def _check_reads(found: Checkpoint, data: EncodedSet) -> None:
    """Raise `TokenizerError` or `ConfigError` if another model cannot be scored on the encoded data."""
    require_tokenizer(found, data.details)
    config: Any = load_config(found.folder)
    longest = max(int(split.lengths.max()) for split in data.splits.values() if len(split))
    check_positions(config, longest, "the longest example")
    check_one_scale(config, longest, "the longest example")
    given, wanted = (GIVEN.get(task, "one label per text") for task in (task_of(config), data.details["task"]))
    if given != wanted:
        raise ConfigError(f"{found.key} predicts {given}, but the data has {wanted}")
    known = config.id2label
    classes = data.details["classes"] or ["value"]
    if known != dict(enumerate(classes)):
        raise ConfigError(
            f"{found.key} predicts {', '.join(map(str, known.values()))}, but the data has {', '.join(classes)}"
        )


def _write_predictions(
    store: Store, measurement: Measurement, data: EncodedSet, predicted: dict[str, NDArray[np.float32]]
) -> dict[str, str]:
    """Write the predictions of a run's final model, and delete those of splits that it no longer has. Returns their
    SHA-256.

    Raises `RunError` if the run was meanwhile requested with another test split, so these predictions are outdated.
    """
    check_asked(store, measurement)
    assert measurement.run is not None
    for split in set(PREDICTED) - predicted.keys():
        store.delete(predictions_key(measurement.run, split))
    places = {split: predictions_key(measurement.run, split) for split in predicted}
    return {place: _write(store, place, data, split, predicted[split]) for split, place in places.items()}


def _write(store: Store, key: str, data: EncodedSet, split: str, logits: NDArray[np.float32]) -> str:
    """Write a split's predictions, one JSON object per line, in the split's order. Returns their SHA-256."""
    with store.writing(key) as path:
        with open(path, "w", encoding="utf-8") as file:
            several = data.details["task"] == "multi-label"
            file.writelines(split_lines(data.splits[split], logits, data.details["classes"], several))
        return digest_file(path).sha256
