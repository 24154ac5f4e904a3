"""Checks of a fine-tuning job before long work starts: store, devices, batches, model, tokenizer, metrics."""

from typing import Any

from transformers import PretrainedConfig

from trainer.common.progress import Progress
from trainer.common.stopping import check_stop
from trainer.config.labelled import FinetuneJob
from trainer.data.encoded import encoded_details, split_sizes
from trainer.data.labelled.encoded import find_class_weights
from trainer.data.labelled.look import look_at_labelled
from trainer.data.labelled.text_encoder import load_text_encoder
from trainer.data.splits import TRAIN
from trainer.data.step_plan import make_tuning_plan
from trainer.kinds.labelled.kind import identify
from trainer.kinds.labelled.measure import check_best_by, metric_names
from trainer.kinds.tuning_preflight import (
    Known,
    Start,
    check_run,
    conclude,
    look_at_start,
    recorded_lengths,
)
from trainer.models.causal import check_one_scale, sketch_model
from trainer.models.classifiers import classifier_config, kind_of
from trainer.models.layers import refuse_skipping
from trainer.preflight.memory import WEIGHT_BYTES, Memory, Size, library_bytes, measure_size
from trainer.records.results import TuningPreflight
from trainer.records.steps import look_for
from trainer.store.manifest import ArtifactRef
from trainer.store.storage import Store
from trainer.training.runtime import count_gpus


def labelled_preflight(job: FinetuneJob, progress: Progress) -> TuningPreflight:
    """Check everything that can be checked before work starts. Raises the `PipelineError` of the first problem."""
    start = look_at_start(job)
    store, ranks, source = start
    encoded = look_for("encode", job, model_folder=source)
    details, known = _read_data(store, job, source, encoded, progress)
    check_stop()
    config = classifier_config(source, details)
    if ranks > 1:
        refuse_skipping(config)
    check_one_scale(config, max((each.longest for each in known.lengths.values()), default=0), "data.max_length")
    size = _measure_size(job, start, config, _longest(details))
    classes: list[str] | None = details["classes"]
    check_best_by(job if known.splits else _without_class(job), classes)
    plan = make_tuning_plan(job, known.splits, ranks) if known.splits else None
    run = check_run(store, identify(job, encoded)) if encoded else None
    known = known._replace(plan=plan, several_labels=job.data.task == "multi-label")
    return conclude(job, start, size, known, metric_names(job, classes), run)


def _longest(details: dict[str, Any]) -> int:
    """Tokens of the longest training example; for data that is not encoded yet, the maximum."""
    return int(details["splits"][TRAIN]["longest"] if "splits" in details else details["max_length"])


def _measure_size(job: FinetuneJob, start: Start, config: PretrainedConfig, length: int) -> Size:
    sketch = sketch_model(config, job.model.attention, job.model.lora, kind_of(job.data.task))
    size = measure_size(job, sketch, start.ranks, length)
    if job.training.sharding == "none":
        return size
    whole = library_bytes() + WEIGHT_BYTES * size.parameters  # loaded unsharded first, because it gets a new head
    device = size.memory.device if count_gpus(job.training.device) else max(size.memory.device, whole)
    return size._replace(memory=Memory(device, max(size.memory.host, whole)))


def _without_class(job: FinetuneJob) -> FinetuneJob:
    """The job without its positive class, which cannot be checked while the classes are unknown."""
    return job.model_copy(update={"evaluation": job.evaluation.model_copy(update={"positive_class": None})})


def _read_data(
    store: Store, job: FinetuneJob, source: str, encoded: ArtifactRef | None, progress: Progress
) -> tuple[dict[str, Any], Known]:
    """The data's details in the form of an encoded set's, and facts to report; without a plan."""
    if encoded is not None:
        details = encoded_details(store, encoded.key)
        counts = details["splits"][TRAIN].get("class_counts")
        _check_class_weights(job, details["classes"], counts)
        lengths = recorded_lengths(details, details["max_length"])
        return details, Known(split_sizes(details), f"encoded already: {encoded.key}", None, lengths, counts)
    encoder = load_text_encoder(source, job.data)
    look = look_at_labelled(store, job.data, encoder, progress)
    _check_class_weights(job, look.classes, look.balance if look.splits else None)
    classes = look.classes or look.seen or ["0", "1"] if job.data.task != "regression" else None
    details = {
        "task": job.data.task,
        "classes": classes,
        "pad_id": 0,
        "vocab_size": 0,
        "max_length": encoder.max_length,
    }
    return details, Known(look.splits, look.looked_at, None, look.lengths, look.balance)


def _check_class_weights(job: FinetuneJob, classes: list[str] | None, counts: dict[str, int] | None) -> None:
    if job.training.class_weights is not None and classes is not None:
        find_class_weights(job.training.class_weights, classes, counts)
