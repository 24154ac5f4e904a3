"""Predictions of a fine-tuned model, and its figures: every example once, whatever the batch size and number of ranks."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from trainer.checkpoint import Criterion
from trainer.encoded import EncodedSet, EncodedSplit
from trainer.errors import ConfigError
from trainer.finetune_config import FinetuneJob, MeasurementConfig
from trainer.measures import Metrics, default_metrics, greater_is_better, load_metrics
from trainer.runtime import Runtime


class Predictions(NamedTuple):
    """What a model says of some examples: their places in the split, and the logits, of shape [B, C], float32."""

    examples: NDArray[np.int64]
    logits: NDArray[np.float32]


@torch.no_grad()
def predict(
    model: PreTrainedModel,
    split: EncodedSplit,
    batch: int,
    runtime: Runtime,
    advance: Callable[[int], None] = lambda examples: None,
) -> Iterator[Predictions]:
    """Predict a split, a round of one batch a rank at a time, the longest examples first; all ranks get every round."""
    was_training = model.training
    model.eval()
    order = np.argsort(-split.lengths, kind="stable")
    width = label_count(model)
    for first in range(0, len(order), batch * runtime.ranks):
        examples = order[first : first + batch * runtime.ranks]
        mine = slice(runtime.rank * batch, (runtime.rank + 1) * batch)
        logits = torch.zeros(len(examples), width)
        if len(examples[mine]):
            inputs = {name: torch.from_numpy(part).to(runtime.device) for name, part in split.read(examples[mine]).items()}
            with runtime.accelerator.autocast():
                logits[mine] = model(**inputs).logits.float().cpu()
        advance(len(examples))
        yield Predictions(examples, runtime.sum(logits).numpy())
    model.train(was_training)


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
    """Take in rounds of predictions as they come; returns the mean loss and the metrics, the same on every rank."""
    labels = data.splits[split].labels
    assert labels is not None
    metrics = open_metrics(job, len(data.details["classes"] or [])) if runtime.rank == 0 else None
    total = 0.0
    for round_ in rounds:
        references = labels[round_.examples]
        total += float(_losses(round_.logits, references).sum())
        if metrics is not None:
            metrics.add_batch(decide(round_.logits, data), references)
    figures = runtime.on_first(lambda: metrics.compute() if metrics is not None else {})
    scores = {"loss": total / len(labels), **figures}
    _require_figure(job, scores)
    return scores


def open_metrics(job: FinetuneJob, classes: int) -> Metrics:
    """The job's metrics. Raises `ConfigError` for one that is unknown or does not fit."""
    return load_metrics(metric_names(job, classes), job.data.task, classes)


def metric_names(job: FinetuneJob, classes: int) -> list[str]:
    """The metrics that the job names, or those that fit its data."""
    return job.evaluation.metrics or default_metrics(job.data.task, classes, glue_task(job))


def check_best_by(job: FinetuneJob, classes: int) -> None:
    """Measure two made-up examples. Raises `ConfigError` if the figure that decides is not among those that come out."""
    metrics = open_metrics(job, classes)
    made_up = np.array([0, 1] if classes else [0.0, 1.0])
    metrics.add_batch(made_up, made_up)
    scores = {"loss": 0.0, **metrics.compute()}
    _require_figure(job, scores)
    if job.promotion is not None and job.promotion.metric not in scores:
        raise ConfigError(f"promotion.metric is {job.promotion.metric!r}, but what is measured are {', '.join(scores)}")


def _require_figure(job: FinetuneJob, scores: dict[str, float]) -> None:
    if job.evaluation.best_by not in scores:
        raise ConfigError(f"evaluation.best_by is {job.evaluation.best_by!r}, but what is measured are {', '.join(scores)}")


def glue_task(job: FinetuneJob) -> str | None:
    """The name of the GLUE task that the job's data is, or None."""
    is_glue = job.data.source == "hub" and (job.data.path or "").split("/")[-1] == "glue"
    return job.data.subset if is_glue else None


def decide(logits: NDArray[np.float32], data: EncodedSet) -> NDArray[np.int64] | NDArray[np.float32]:
    """The likeliest class of each example, or its predicted number; [B, C] -> [B]."""
    return logits.argmax(axis=1) if data.details["classes"] else logits[:, 0]


def make_criterion(options: MeasurementConfig) -> Criterion:
    """What says which checkpoint is best."""
    greater = options.greater_is_better
    return Criterion(options.best_by, greater_is_better(options.best_by) if greater is None else greater)


def probabilities(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    """The softmax of logits of shape [B, C], in float64."""
    shifted = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
    chances: NDArray[np.float64] = shifted / shifted.sum(axis=1, keepdims=True)
    return chances


def _losses(logits: NDArray[np.float32], labels: NDArray[np.int64] | NDArray[np.float64]) -> NDArray[np.float64]:
    """-log p(label) of each example, or its squared error, in float64."""
    if labels.dtype.kind == "f":
        errors: NDArray[np.float64] = np.square(logits[:, 0].astype(np.float64) - labels)
        return errors
    surprises: NDArray[np.float64] = -np.log(probabilities(logits)[np.arange(len(labels)), labels])
    return surprises
