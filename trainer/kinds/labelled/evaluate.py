"""Measuring a fine-tuned model: figures on the labelled splits, and predictions of all that were not trained on.

runs/X/eval.json                          figures, confusion matrix, figures by class
runs/X/predictions/validation.jsonl       id, prediction and probabilities of each example, or of each of its words
runs/X/predictions/test.jsonl
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

from trainer.common.errors import ConfigError, TokenizerError
from trainer.common.progress import Progress
from trainer.config.jobs import EvaluateJob
from trainer.config.labelled import FinetuneJob
from trainer.data.labelled.blocks import encode_files
from trainer.data.labelled.encoded import EncodedSet, EncodedSplit, EncodedWords, open_encoded
from trainer.data.labelled.text_encoder import load_text_encoder
from trainer.data.splits import TEST, TRAIN, VALIDATION
from trainer.evaluation.cache import (
    FORMAT,
    PREDICTED,
    Scoring,
    find_scoring,
    identify_scoring,
    predictions_key,
    tell_replaced,
)
from trainer.evaluation.decontamination import clean_of_splits
from trainer.evaluation.metrics.measures import marks_entities, metric_identity, score_entities
from trainer.evaluation.of_runs import check_asked
from trainer.kinds.labelled.checkpoint_scoring import CheckpointScoring, tell_unused
from trainer.kinds.labelled.measure import (
    Predictions,
    decide,
    gather_scores,
    label_count,
    metric_names,
    positive_figures,
    predict,
    split_lines,
)
from trainer.models.causal import check_positions
from trainer.models.classifiers import load_classifier, outline_classifier, task_of
from trainer.models.loading import load_config
from trainer.models.pretrained import Checkpoint
from trainer.models.tokenizer import TOKENIZER_FILE
from trainer.records.basis import ExamplesBasis, examples_basis
from trainer.records.evaluations import Classification, ClassScore, CleanOf, FinetuneEvaluation
from trainer.records.names import run_at
from trainer.records.sealed import write_sealed
from trainer.store.manifest import digest_file
from trainer.store.names import EVALUATION, FINAL
from trainer.store.storage import Store
from trainer.training.parallelize import place_measured
from trainer.training.rank_watchdog import explaining_lost_ranks
from trainer.training.runtime import Runtime, start_runtime
from trainer.training.sharding import sharding_group


def classify_split(held: EncodedSplit, predicted: NDArray[Any], names: Sequence[str]) -> Classification:
    """The figures of each class, or of each type of entity that the labels of words mark, of the labelled examples."""
    examples = np.flatnonzero(held.labelled)
    rows = held.rows(examples)
    sides = (predicted[rows], held.labels[rows])
    if not (isinstance(held, EncodedWords) and marks_entities(names)):
        return classify(*sides, names)
    # There is no matrix: an entity is found or not.
    told, true = (held.words.named(examples, each, names) for each in sides)
    return Classification(confusion=[], classes=_scores(score_entities(told, true, names)))


def classify(predicted: NDArray[Any], labels: NDArray[Any], names: Sequence[str]) -> Classification:
    """The confusion matrix (rows are labels, columns predictions) and each class's precision, recall, F1 and support.

    There is no matrix where several classes may apply: a mistake is then no confusion of one class with another.
    """
    classes = list(range(len(names)))
    figures = precision_recall_fscore_support(labels, predicted, labels=classes, zero_division=0.0)
    return Classification(
        confusion=[] if labels.ndim > 1 else confusion_matrix(labels, predicted, labels=classes).tolist(),
        classes=_scores(zip(names, *figures, strict=True)),
    )


def _scores(figures: Iterable[tuple[str, Any, Any, Any, Any]]) -> list[ClassScore]:
    return [
        ClassScore(name=name, precision=float(precision), recall=float(recall), f1=float(f1), support=int(support))
        for name, precision, recall, f1, support in figures
    ]


GIVEN = {"multi-label": "several classes at once", "tokens": "a class for each word"}
"""What a text is given, by task, where that is not one class, or a number."""


def evaluate_run(
    job: FinetuneJob, run_key: str, progress: Progress, other: str | None = None, encoded: str | None = None
) -> FinetuneEvaluation:
    """Score a run's final model and write its predictions; an evaluation already made is reused. Called by every rank.

    The final model of an `other` run can be scored on this one's data, if it has the same tokenizer and classes; its
    predictions are not written. `encoded` is the key of the set that the job prepared: another job may have asked for
    the run with another test split since, which raises `RunError`. Raises `ArtifactError` if a model is missing or
    damaged, `TokenizerError` and `ConfigError` if it does not read this data.
    """
    store = Store(job.store)
    check_asked(store, run_key, encoded)
    wanted = identify_scoring(store, job, run_key, other, encoded)
    return _score(store, job, wanted, run_key, f"{other}/{FINAL}" if other else None, progress)


def score_checkpoint(
    store: Store, job: EvaluateJob, scoring: CheckpointScoring, progress: Progress
) -> FinetuneEvaluation:
    """Score any checkpoint of a run on the run's own data. Called by every rank.

    Predictions are written only of the final model, measured as its job says. Raises `ArtifactError` if the data is
    gone.
    """
    tell_unused(job)
    if scoring.files is not None:
        return _score_files(store, scoring, job.checkpoint, progress)
    own = scoring.wanted.key == f"{scoring.run}/{EVALUATION}"
    return _score(store, scoring.job, scoring.wanted, scoring.run, None if own else job.checkpoint, progress)


@explaining_lost_ranks()
def _score_files(store: Store, scoring: CheckpointScoring, named: str, progress: Progress) -> FinetuneEvaluation:
    """Score a checkpoint on new labelled files."""
    job, wanted = scoring.job, scoring.wanted
    runtime = start_runtime(job.training.precision, job.training.device, job.training.deterministic)
    earlier = runtime.on_first(lambda: find_scoring(store, wanted))
    if earlier is not None:
        return earlier
    with open_files(scoring, progress) as data:
        return _measure(store, job, wanted, scoring.run, named, data, runtime, progress, names_of_files(scoring))


@contextmanager
def open_files(scoring: CheckpointScoring, progress: Progress) -> Iterator[EncodedSet]:
    """The examples of the new labelled files that a checkpoint is to be measured on, for the length of a block."""
    data = scoring.job.data
    assert scoring.files is not None
    encoder = load_text_encoder(scoring.wanted.model.folder, data, finished=True)
    with encode_files(data, scoring.files, encoder, data.label_columns or data.classes, progress) as found:
        yield found


def names_of_files(scoring: CheckpointScoring) -> list[str]:
    """The names of these files."""
    assert scoring.files is not None
    return [part.name for part in scoring.files.parts[TRAIN]]


@explaining_lost_ranks()
def _score(
    store: Store, job: FinetuneJob, wanted: Scoring, run: str, named: str | None, progress: Progress
) -> FinetuneEvaluation:
    """Score a model on a run's data: the final one as the run's own evaluation, or another that is `named` so."""
    runtime = start_runtime(job.training.precision, job.training.device, job.training.deterministic)
    earlier = runtime.on_first(lambda: find_scoring(store, wanted))
    if earlier is not None:
        return earlier
    if not named:
        runtime.on_first(lambda: tell_replaced(store, wanted))
    data = open_encoded(store, wanted.encoded)
    if named is not None:
        _check_reads(wanted.model, data)
    return _measure(store, job, wanted, run, named, data, runtime, progress)


def _measure(
    store: Store, job: FinetuneJob, wanted: Scoring, run: str, named: str | None, data: EncodedSet, runtime: Runtime,
    progress: Progress, new: Sequence[str] = (),
) -> FinetuneEvaluation:  # fmt: skip
    """Score a model on a set, and record it; `new` are the files that the set is of, where it is not the run's own."""
    folder = Path(wanted.model.folder)
    splits = [split for split in PREDICTED if split in data.splits and (not named or data.splits[split].labelled.any())]
    scores: dict[str, dict[str, float]] = {}
    details: dict[str, Classification] = {}
    predicted: dict[str, NDArray[np.float32]] = {}
    with ExitStack() as stack:
        stack.enter_context(sharding_group(job.training, runtime))
        model = place_measured(
            job.training, runtime, partial(outline_classifier, job, data.details, folder),
            partial(load_classifier, store, job, data.details, folder, wanted.model.beside),
        )  # fmt: skip
        bar = stack.enter_context(progress.bar("evaluate", sum(len(data.splits[split]) for split in splits), "example"))
        for split in splits:
            held = data.splits[split]
            logits = predicted[split] = np.zeros((held.predictions, label_count(model)), dtype=np.float32)
            rounds = _noting(predict(model, held, job.evaluation.batch, runtime, bar.advance), held, logits)
            if not held.labelled.any():
                for _ in rounds:
                    pass
            else:
                scores[split] = gather_scores(rounds, data, split, job, runtime)
                if data.details["classes"]:
                    details[split] = classify_split(held, decide(logits, data), data.details["classes"])
    files = {} if named else runtime.on_first(lambda: _write_predictions(store, run, wanted.encoded, data, predicted))
    result = FinetuneEvaluation(
        format=FORMAT, fingerprint=wanted.fingerprint, key=wanted.key, checkpoint=named or f"{run}/{FINAL}",
        encoded=wanted.encoded, files=list(new), scores=scores, classification=details, predictions=files,
        measured_on=_basis(job, data, TEST if new else VALIDATION),
        positive=_measured_of(positive_figures(job, data.details["classes"]), scores),
        model=wanted.model.key if named else None,
        clean_of=None if new else runtime.on_first(lambda: _clean_of(store, wanted.model, data)),
    )  # fmt: skip
    runtime.on_first(lambda: write_sealed(store, wanted.key, result.model_dump(exclude={"reused"}, exclude_none=True)))
    return result


def _basis(job: FinetuneJob, data: EncodedSet, split: str) -> ExamplesBasis:
    """What the figures of a split are measured on."""
    metrics = [metric_identity(name) for name in metric_names(job, data.details["classes"])]
    if job.evaluation.positive_class is not None:
        metrics.append(f"of {job.evaluation.positive_class}")
    return examples_basis(data.details, job.data.model_dump(), split, metrics, job.training.precision)


def _clean_of(store: Store, found: Checkpoint, data: EncodedSet) -> CleanOf | None:
    """What the text is clean of that the model's run began with, if it is all that the model is measured on."""
    run = run_at(store, found.key) if found.key else None
    return clean_of_splits(store, run, data.details, data.details["text_columns"]) if run else None


def _check_reads(found: Checkpoint, data: EncodedSet) -> None:
    """Raise `TokenizerError` or `ConfigError` if another model cannot be scored on encoded data as it is."""
    carried = found.files.get(TOKENIZER_FILE)
    if carried is not None and carried != data.details["tokenizer_sha256"]:
        raise TokenizerError(f"{found.key} has another tokenizer than the one that encoded this data")
    config: Any = load_config(found.folder)
    longest = max(int(split.lengths.max()) for split in data.splits.values() if len(split))
    check_positions(config, longest, "the longest example")
    given, wanted = (GIVEN.get(task, "one class") for task in (task_of(config), data.details["task"]))
    if given != wanted:
        raise ConfigError(f"{found.key} gives a text {given}, the data {wanted}")
    known = config.id2label
    classes = data.details["classes"] or ["value"]
    if known != dict(enumerate(classes)):
        raise ConfigError(
            f"{found.key} tells {', '.join(map(str, known.values()))} apart, the data has {', '.join(classes)}"
        )


def _measured_of(positive: dict[str, str], scores: dict[str, dict[str, float]]) -> dict[str, str]:
    """Those of the figures that were measured."""
    measured = {figure for each in scores.values() for figure in each}
    return {figure: name for figure, name in sorted(positive.items()) if figure in measured}


def _noting(rounds: Iterator[Predictions], held: EncodedSplit, logits: NDArray[np.float32]) -> Iterator[Predictions]:
    """Pass rounds on, and put their logits where they belong."""
    for round_ in rounds:
        logits[held.rows(round_.examples)] = round_.logits
        yield round_


def _write_predictions(
    store: Store, run: str, encoded: str, data: EncodedSet, predicted: dict[str, NDArray[np.float32]]
) -> dict[str, str]:
    """Write the predictions of a run's final model; those of a split that it has no more go. Returns their SHA-256.

    Raises `RunError` if the run was asked for with another test split in the meantime: these are not its predictions
    any more.
    """
    check_asked(store, run, encoded)
    for split in set(PREDICTED) - predicted.keys():
        store.delete(predictions_key(run, split))
    places = {split: predictions_key(run, split) for split in predicted}
    return {place: _write(store, place, data, split, predicted[split]) for split, place in places.items()}


def _write(store: Store, key: str, data: EncodedSet, split: str, logits: NDArray[np.float32]) -> str:
    """Write a split's predictions, one JSON object a line, in the split's order. Returns their SHA-256."""
    with store.writing(key) as path:
        with open(path, "w", encoding="utf-8") as file:
            several = data.details["task"] == "multi-label"
            file.writelines(split_lines(data.splits[split], logits, data.details["classes"], several))
        return digest_file(path).sha256
