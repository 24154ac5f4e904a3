"""Predictions of a fine-tuned model, and its figures: every example once, whatever the batch and the ranks."""

import json
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from trainer.common.errors import ConfigError
from trainer.config.labelled import FinetuneJob
from trainer.data.labelled.encoded import EncodedSet, EncodedSplit, EncodedWords
from trainer.evaluation.metrics import (
    METRICS,
    Metrics,
    default_metrics,
    default_of_words,
    load_metrics,
    of_one_class,
    positive_class,
)
from trainer.evaluation.own_metrics import SEQEVAL, WORD_ACCURACY, marks_entities
from trainer.evaluation.scoring import nothing, rounds
from trainer.training.runtime import Runtime

MOST_TOLD = 12
"""Classes that a message lists."""


class Predictions(NamedTuple):
    """What a model says of some examples: their places in the split, and the logits, float32 [B, C], or of words [S,
    C].
    """

    examples: NDArray[np.int64]
    logits: NDArray[np.float32]


@torch.no_grad()
def predict(
    model: PreTrainedModel,
    split: EncodedSplit,
    batch: int,
    runtime: Runtime,
    advance: Callable[[int], None] = nothing,
) -> Iterator[Predictions]:
    """Predict a split, a round of one batch a rank at a time, the longest examples first; all ranks get every round.

    Where each word has a label, there are logits for each word that the model sees, as `EncodedSplit.rows` has them.
    """
    order = np.argsort(-split.lengths, kind="stable")
    width = label_count(model)
    for samples, share, computed in rounds(model, len(order), batch, runtime, advance):
        examples = order[samples.start : samples.stop]
        logits = torch.zeros(len(split.rows(examples)), width)
        if computed:
            read = split.read(order[computed.start : computed.stop])
            inputs = {name: torch.from_numpy(part).to(runtime.device) for name, part in read.items()}
            with runtime.accelerator.autocast():
                found = model(**inputs).logits.float().cpu()
            picked = split.pick(order[share.start : share.stop], found)
            first_row = len(split.rows(order[samples.start : share.start]))
            logits[first_row : first_row + len(picked)] = picked
        yield Predictions(examples, runtime.sum(logits).numpy())


def label_count(model: PreTrainedModel) -> int:
    """Logits an example: one for each class, or one number."""
    return int(model.config.num_labels or 1)


def score(model: PreTrainedModel, data: EncodedSet, split: str, job: FinetuneJob, runtime: Runtime) -> dict[str, float]:
    """Mean loss and the job's metrics on a labelled split, the same on every rank."""
    rounds = predict(model, data.splits[split], job.evaluation.batch, runtime)
    return gather_scores(rounds, data, split, job, runtime)


def gather_scores(
    rounds: Iterator[Predictions], data: EncodedSet, split: str, job: FinetuneJob, runtime: Runtime
) -> dict[str, float]:
    """Take in rounds of predictions as they come; returns the mean loss and the metrics, the same on every rank.

    They are of the examples that are labelled, of which there must be some.
    """
    held = data.splits[split]
    metrics = open_metrics(job, data.details["classes"]) if runtime.rank == 0 else None
    losses: list[float] = []
    for round_ in rounds:
        examples, logits = round_.examples[held.labelled[round_.examples]], round_.logits[held.known(round_.examples)]
        references = held.labels[held.rows(examples)]
        losses += example_losses(logits, references).tolist()
        if metrics is not None:
            sides: list[Any] = [decide(logits, data), references]
            if isinstance(held, EncodedWords):
                sides = [held.words.named(examples, each, data.details["classes"]) for each in sides]
            metrics.add_batch(*sides)
    figures = runtime.on_first(lambda: metrics.compute() if metrics is not None else {})
    # Rounded once: a sum of the rounds' sums has other last digits on another number of ranks.
    scores = {"loss": math.fsum(losses) / len(losses), **figures}
    _require_figure(job, scores)
    return scores


def open_metrics(job: FinetuneJob, classes: list[str] | None) -> Metrics:
    """The job's metrics. Raises `ConfigError` for one that is unknown or does not fit."""
    names, named = metric_names(job, classes), classes or []
    if SEQEVAL in names and job.data.task == "tokens" and not marks_entities(named):
        raise ConfigError(
            f"metric {SEQEVAL!r} is of entities that labels such as B-X, I-X and O mark, but the labels are "
            f"{', '.join(named[:MOST_TOLD])}{' …' if len(named) > MOST_TOLD else ''}; take {WORD_ACCURACY}"
        )
    positive = positive_class(job.evaluation.positive_class, named, names)
    return load_metrics(names, job.data.task, len(named), positive)


def positive_figures(job: FinetuneJob, classes: list[str] | None) -> dict[str, str]:
    """The figures of the job's metrics that are of one class of two, each with the class's name."""
    if classes is None or len(classes) != 2:
        return {}
    names = metric_names(job, classes)
    return dict.fromkeys(of_one_class(names), classes[positive_class(job.evaluation.positive_class, classes, names)])


def metric_names(job: FinetuneJob, classes: list[str] | None) -> list[str]:
    """The metrics that the job names, or those that fit its data."""
    if job.evaluation.metrics:
        return job.evaluation.metrics
    if job.data.task == "tokens":
        return default_of_words(classes or [])
    return default_metrics(job.data.task, len(classes or []), glue_task(job))


def check_best_by(job: FinetuneJob, classes: list[str] | None) -> None:
    """Measure two made-up examples. Raises `ConfigError` if the figure that decides is not among those that come
    out.
    """
    metrics = open_metrics(job, classes)
    made_up: Any = np.array([0, 1] if classes else [0.0, 1.0])
    if job.data.task == "multi-label":
        made_up = np.eye(2, len(classes or []), dtype=np.int64)
    elif job.data.task == "tokens":
        made_up = [classes or []]
    metrics.add_batch(made_up, made_up)
    scores = {"loss": 0.0, **metrics.compute()}
    _require_figure(job, scores)
    if job.promotion is not None and job.promotion.metric not in scores:
        raise _not_measured("promotion.metric", job.promotion.metric, scores)


def _require_figure(job: FinetuneJob, scores: dict[str, float]) -> None:
    if job.evaluation.best_by not in scores:
        raise _not_measured("evaluation.best_by", job.evaluation.best_by, scores)


def _not_measured(setting: str, wanted: str, scores: dict[str, float]) -> ConfigError:
    metric = f" the metric {wanted!r}, not one of its figures" if wanted in METRICS else f" {wanted!r}"
    return ConfigError(f"{setting} is{metric}, but what is measured are {', '.join(scores)}")


def glue_task(job: FinetuneJob) -> str | None:
    """The name of the GLUE task that the job's data is, or None."""
    is_glue = job.data.source == "hub" and (job.data.path or "").split("/")[-1] == "glue"
    return job.data.subset if is_glue else None


def decide(logits: NDArray[np.float32], data: EncodedSet) -> NDArray[np.int64] | NDArray[np.float32]:
    """The likeliest class of each example, or its number; [B, C] -> [B]. Of several labels, those that apply, [B,
    C].
    """
    if data.details["task"] == "multi-label":
        return applying(logits)
    return logits.argmax(axis=1) if data.details["classes"] else logits[:, 0]


def applying(logits: NDArray[np.float32]) -> NDArray[np.int64]:
    """1 for each class that rather applies than not, of logits of shape [B, C]."""
    return (logits > 0).astype(np.int64)


def probabilities(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    """The softmax of logits of shape [B, C], in float64."""
    shifted = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
    chances: NDArray[np.float64] = shifted / shifted.sum(axis=1, keepdims=True)
    return chances


def prediction_lines(
    ids: Sequence[str], logits: NDArray[np.float32], classes: list[str] | None, several: bool = False
) -> Iterator[str]:
    """A JSON object for each example: its name, its likeliest class and all probabilities, or its number.

    Where `several` classes may apply, the list of those that do.
    """
    if classes is None:
        for name, number in zip(ids, logits[:, 0], strict=True):
            yield json.dumps({"id": name, "prediction": float(number)}, ensure_ascii=False) + "\n"
        return
    likely = np.exp(-np.logaddexp(0, -logits.astype(np.float64))) if several else probabilities(logits)
    for name, chances, applies in zip(ids, likely.tolist(), applying(logits).tolist(), strict=True):
        chosen = [each for each, yes in zip(classes, applies, strict=True) if yes]
        line: dict[str, Any] = {"id": name, "prediction": chosen if several else classes[chances.index(max(chances))]}
        line["probabilities"] = {each: round(chance, 6) for each, chance in zip(classes, chances, strict=True)}
        yield json.dumps(line, ensure_ascii=False) + "\n"


def example_losses(logits: NDArray[np.float32], labels: NDArray[np.int64] | NDArray[np.float64]) -> NDArray[np.float64]:
    """-log p(label) of each example, its mean over the classes where several may apply, or its squared error, in
    float64.
    """
    if labels.dtype.kind == "f":
        errors: NDArray[np.float64] = np.square(logits[:, 0].astype(np.float64) - labels)
        return errors
    if labels.ndim > 1:
        scores = logits.astype(np.float64)
        means: NDArray[np.float64] = (np.logaddexp(0, scores) - scores * labels).mean(axis=1)
        return means
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    # Not the logarithm of a probability, which may be 0 where this is a large number.
    surprises: NDArray[np.float64] = np.log(np.exp(shifted).sum(axis=1)) - shifted[np.arange(len(labels)), labels]
    return surprises


def split_lines(
    split: EncodedSplit, logits: NDArray[np.float32], classes: list[str] | None, several: bool
) -> Iterator[str]:
    """The lines of a split's predictions, of its words if each has a label."""
    if not isinstance(split, EncodedWords):
        return prediction_lines(split.ids, logits, classes, several)
    assert classes is not None
    return word_lines(split, logits, classes)


def word_lines(split: EncodedWords, logits: NDArray[np.float32], classes: Sequence[str]) -> Iterator[str]:
    """A JSON object for each example: its name, and of each word its likeliest class and how likely that is.

    Both are null for a word that the model does not see.
    """
    told = iter(logits.argmax(axis=1).tolist())
    chances = iter(probabilities(logits).max(axis=1).tolist())
    for name, seen in zip(split.ids, split.words.by_example(), strict=True):
        line = {
            "id": name,
            "prediction": [classes[next(told)] if each else None for each in seen.tolist()],
            "probabilities": [round(next(chances), 6) if each else None for each in seen.tolist()],
        }
        yield json.dumps(line, ensure_ascii=False) + "\n"
