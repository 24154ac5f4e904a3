"""Predictions and figures of a fine-tuned model: each example counts once, whatever the batch size and number of ranks.

For families that read padding as text, the predictions depend on both (`trainer.models.trial.depends_on_padding`).
"""

import json
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional as F
from transformers import PreTrainedModel

from trainer.common.display import some
from trainer.common.errors import ConfigError
from trainer.config.labelled import FinetuneJob
from trainer.data.encoded import IGNORED
from trainer.data.labelled.encoded import EncodedSet, EncodedSplit, EncodedWords
from trainer.evaluation.builtin_metrics import SEQEVAL, WORD_ACCURACY, marks_entities
from trainer.evaluation.metrics import (
    Metrics,
    default_metrics,
    load_metrics,
    of_one_class,
    positive_class,
)
from trainer.evaluation.scoring import nothing, rounds
from trainer.training.runtime import Runtime

log = logging.getLogger(__name__)

MOST_LISTED = 12
"""Most classes that a message lists."""

AT_ONCE = 2**16
"""Examples, or words, whose losses are computed together; scores that are turned into text together."""


@torch.no_grad()
def predict(
    model: PreTrainedModel,
    split: EncodedSplit,
    batch: int,
    runtime: Runtime,
    advance: Callable[[int], None] = nothing,
) -> NDArray[np.float32]:
    """The logits of a split, of shape [examples, C], the same on every rank; the longest examples are computed first.

    Where each word has a label, there is a row of logits for each word that the model sees (`EncodedSplit.rows`).
    """
    order = np.argsort(-split.lengths, kind="stable")
    logits = torch.zeros(split.predictions, int(model.config.num_labels or 1))
    for share, computed in rounds(model, len(order), batch, runtime, advance):
        if computed:
            read = split.read(order[computed.start : computed.stop])
            inputs = {name: torch.from_numpy(part).to(runtime.device) for name, part in read.items()}
            with runtime.accelerator.autocast():
                found = model(**inputs).logits.float().cpu()
            examples = order[share.start : share.stop]
            logits[split.rows(examples)] = split.pick(examples, found)
    return runtime.sum(logits).numpy()


def score(
    logits: NDArray[np.float32], data: EncodedSet, split: str, job: FinetuneJob, runtime: Runtime
) -> dict[str, float]:
    """Mean loss and the job's metrics of a split, given a model's logits; the same on every rank.

    Only labelled examples count; there must be at least one.
    """
    encoded = data.splits[split]
    examples, rows = np.flatnonzero(encoded.labelled), labelled_rows(encoded)
    predictions, references = logits[rows], encoded.labels[rows]

    def measure() -> dict[str, float]:
        metrics = open_metrics(job, data.details["classes"])
        finite = bool(np.isfinite(predictions).all())
        sides: list[Any] = [decide(predictions if finite else np.zeros_like(predictions), data), references]
        if isinstance(encoded, EncodedWords):
            sides = [encoded.named(examples, each, data.details["classes"]) for each in sides]
        metrics.add_batch(*sides)
        figures = metrics.compute()
        if not finite:  # else NaN would count as a prediction of the first class
            log.warning("the model's logits are not all finite: its figures on %s are NaN", split)
        return figures if finite else dict.fromkeys(figures, math.nan)

    def losses() -> Iterator[float]:
        for start in range(0, len(references), AT_ONCE):
            part, labels = (torch.tensor(each[start : start + AT_ONCE]) for each in (predictions, references))
            yield from example_losses(part.double(), labels).tolist()

    scores = {"loss": math.fsum(losses()) / len(references), **runtime.on_first(measure)}
    _require_figure("evaluation.best_by", job.evaluation.best_by, job, data.details["classes"], scores)
    return scores


def labelled_rows(data: EncodedSplit) -> Any:
    """The index of the rows of logits and labels that belong to the labelled examples of a split."""
    return slice(None) if data.labelled.all() else data.rows(np.flatnonzero(data.labelled))  # a slice does not copy


def open_metrics(job: FinetuneJob, classes: list[str] | None) -> Metrics:
    """The job's metrics. Raises `ConfigError` for an unknown or unsuitable one."""
    names, named = metric_names(job, classes), classes or []
    if SEQEVAL in names and job.data.task == "tokens" and not marks_entities(named):
        raise ConfigError(
            f"metric {SEQEVAL!r} needs entity labels such as B-X, I-X and O, but the labels are "
            f"{some(named, MOST_LISTED)}; use {WORD_ACCURACY}"
        )
    positive = positive_class(job.evaluation.positive_class, named, names)
    return load_metrics(names, job.data.task, len(named), positive)


def positive_figures(job: FinetuneJob, classes: list[str] | None) -> dict[str, str]:
    """The figures that are of one class of two, each with the name of that class."""
    if classes is None or len(classes) != 2:
        return {}
    names = metric_names(job, classes)
    return dict.fromkeys(of_one_class(names), classes[positive_class(job.evaluation.positive_class, classes, names)])


def metric_names(job: FinetuneJob, classes: list[str] | None) -> list[str]:
    """The metrics that the job lists, or the defaults for its data."""
    if job.evaluation.metrics:
        return job.evaluation.metrics
    return default_metrics(job.data.task, classes or [], glue_task(job))


def check_best_by(job: FinetuneJob, classes: list[str] | None) -> None:
    """Raise `ConfigError` if measuring two made-up examples does not return the figure that selects the best
    checkpoint.
    """
    metrics = open_metrics(job, classes)
    made_up: Any = np.array([0, 1] if classes else [0.0, 1.0])
    if job.data.task == "multi-label":
        made_up = np.eye(2, len(classes or []), dtype=np.int64)
    elif job.data.task == "tokens":
        made_up = [classes or []]
    metrics.add_batch(made_up, made_up)
    scores = {"loss": 0.0, **metrics.compute()}
    _require_figure("evaluation.best_by", job.evaluation.best_by, job, classes, scores)
    if job.promotion is not None:
        _require_figure("promotion.metric", job.promotion.metric, job, classes, scores)


def _require_figure(
    setting: str, wanted: str, job: FinetuneJob, classes: list[str] | None, scores: dict[str, float]
) -> None:
    if wanted not in scores:
        is_metric = wanted in metric_names(job, classes)
        metric = f"the metric {wanted!r}, not one of its figures" if is_metric else repr(wanted)
        raise ConfigError(
            f"{setting} is {metric}, but the measured figures are {', '.join(scores)}; set it to one of them"
        )


def glue_task(job: FinetuneJob) -> str | None:
    """The GLUE task of the job's data, or None."""
    is_glue = job.data.source == "hub" and (job.data.path or "").split("/")[-1] == "glue"
    return job.data.subset if is_glue else None


def decide(logits: NDArray[np.float32], data: EncodedSet) -> NDArray[np.int64] | NDArray[np.float32]:
    """The likeliest class of each example, or its number; [B, C] -> [B]. For multi-label, the classes that apply,
    [B, C].
    """
    if data.details["task"] == "multi-label":
        return applying(logits)
    return logits.argmax(axis=1) if data.details["classes"] else logits[:, 0]


def applying(logits: NDArray[np.float32]) -> NDArray[np.int64]:
    """1 for each class with a probability above 1/2, from logits of shape [B, C]."""
    return (logits > 0).astype(np.int64)


def prediction_lines(
    ids: Sequence[str], logits: NDArray[np.float32], classes: list[str] | None, several: bool = False
) -> Iterator[str]:
    """One JSON object per example: its id, its likeliest class and all probabilities, or its number.

    If `several` classes may apply, the list of those that do. Null if a logit is not finite.
    """
    known = [math.isfinite(total) for total in logits.sum(axis=1, dtype=np.float64).tolist()]
    if classes is None:
        for name, number, sure in zip(ids, logits[:, 0].tolist(), known, strict=True):
            yield json.dumps({"id": name, "prediction": number if sure else None}, ensure_ascii=False) + "\n"
        return
    many = max(1, AT_ONCE // max(1, logits.shape[1]))
    for start in range(0, len(ids), many):
        rows = slice(start, start + many)
        scores = torch.from_numpy(logits[rows]).double()
        likely = (scores.sigmoid() if several else scores.softmax(dim=1)).tolist()
        apply = applying(logits[rows]).tolist()
        for name, chances, applies, sure in zip(ids[rows], likely, apply, known[rows], strict=True):
            line: dict[str, Any] = {"id": name, "prediction": None, "probabilities": None}
            if sure:
                chosen = [each for each, yes in zip(classes, applies, strict=True) if yes]
                line["prediction"] = chosen if several else classes[chances.index(max(chances))]
                line["probabilities"] = {each: round(chance, 6) for each, chance in zip(classes, chances, strict=True)}
            yield json.dumps(line, ensure_ascii=False) + "\n"


def example_losses(
    logits_BC: torch.Tensor, labels_B: torch.Tensor, class_weights_C: torch.Tensor | None = None, smoothing: float = 0.0
) -> torch.Tensor:
    """-log p(label) of each example in nats, or its squared error if labels are numbers. Shape [B], in the precision of
    the logits.

    Where several labels may apply (shape [B, C]): the mean over the classes of -log p(applies, or does not). Where each
    word has a label (labels of shape [B, T], logits [B, T, C]): the sum over the words.

    With class weights and smoothing as in torch: (1 - s) w_y (-log p_y) + s / C sum_c w_c (-log p_c).
    """
    if labels_B.is_floating_point():
        return (logits_BC.squeeze(-1) - labels_B.to(logits_BC.dtype)).square()
    if logits_BC.dim() > 2:
        losses_BT = F.cross_entropy(
            logits_BC.transpose(1, 2), labels_B, class_weights_C, ignore_index=IGNORED, reduction="none",
            label_smoothing=smoothing,
        )  # fmt: skip
        return losses_BT.sum(dim=1)
    if labels_B.dim() > 1:
        applies_BC = labels_B.to(logits_BC.dtype)
        return F.binary_cross_entropy_with_logits(logits_BC, applies_BC, reduction="none").mean(dim=1)
    return F.cross_entropy(logits_BC, labels_B, class_weights_C, reduction="none", label_smoothing=smoothing)


def split_lines(
    split: EncodedSplit, logits: NDArray[np.float32], classes: list[str] | None, several: bool
) -> Iterator[str]:
    """The lines of a split's predictions, for each word if each word has a label."""
    if not isinstance(split, EncodedWords):
        return prediction_lines(split.ids, logits, classes, several)
    assert classes is not None
    return word_lines(split, logits, classes)


def word_lines(split: EncodedWords, logits: NDArray[np.float32], classes: Sequence[str]) -> Iterator[str]:
    """One JSON object per example: its id, and for each word its likeliest class and the probability of that class.

    Both are null for a word that the model does not see, or for which a logit is not finite.
    """
    likeliest = logits.argmax(axis=1).tolist()
    chances = torch.from_numpy(logits).double().softmax(dim=1).amax(dim=1).tolist()
    labels = iter([
        (classes[each], round(chance, 6)) if math.isfinite(chance) else (None, None)
        for each, chance in zip(likeliest, chances, strict=True)
    ])  # fmt: skip
    for name, seen in zip(split.ids, split.seen(), strict=True):
        words = [next(labels) if each else (None, None) for each in seen.tolist()]
        line = {
            "id": name,
            "prediction": [label for label, _ in words],
            "probabilities": [chance for _, chance in words],
        }
        yield json.dumps(line, ensure_ascii=False) + "\n"
