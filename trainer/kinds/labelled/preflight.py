"""The look at a fine-tuning job before long work starts: store, devices, batches, model, tokenizer, metrics."""

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
from trainer.data.step_plan import make_finetune_plan
from trainer.kinds.labelled.identity import identify
from trainer.kinds.labelled.measure import check_best_by, metric_names
from trainer.kinds.tuning_preflight import Known, Size, conclude, look_at_start, recorded_lengths
from trainer.models.causal import count_adapted, count_units
from trainer.models.classifiers import classifier_config, kind_of
from trainer.preflight.resources import WEIGHT_BYTES, Memory, estimate_memory, guess_activations, library_bytes
from trainer.records.named_steps import look_for
from trainer.records.results import FinetunePreflight
from trainer.store.manifest import ArtifactRef
from trainer.store.storage import Store
from trainer.training.runtime import count_gpus


def finetune_preflight(job: FinetuneJob, progress: Progress) -> FinetunePreflight:
    """Check everything that can be checked before work starts. Raises the `PipelineError` of whatever is wrong."""
    start = look_at_start(job)
    store, ranks, source = start
    encoded = look_for("encode", job, model_folder=source)
    details, known = _look(store, job, source, encoded, progress)
    check_stop()
    config = classifier_config(source, details)
    trained, parameters = count_adapted(config, job.model.attention, job.model.lora, kind_of(job.data.task))
    memory = _estimate(job, config, ranks, trained, parameters, _longest(details))
    classes: list[str] | None = details["classes"]
    check_best_by(job if known.splits else _without_class(job), classes)
    plan = make_finetune_plan(job.training, known.splits, ranks) if known.splits else None
    run = identify(job, encoded).key if encoded else None
    return conclude(
        job, start, Size(trained, parameters, memory), known._replace(plan=plan), metric_names(job, classes), run
    )


def _longest(details: dict[str, Any]) -> int:
    """Tokens of the longest example that is trained on; of data that is not encoded yet, tokens of one at most."""
    return int(details["splits"][TRAIN]["longest"] if "splits" in details else details["max_length"])


def _estimate(
    job: FinetuneJob, config: PretrainedConfig, ranks: int, trained: int, parameters: int, length: int
) -> Memory:
    training = job.training
    sharded = training.sharding == "fsdp"
    units = count_units(config, job.model.attention, kind_of(job.data.task)) if sharded else None
    kept, libraries = guess_activations(config, training), library_bytes()
    memory = estimate_memory(training, length, config, ranks, parameters, kept, libraries, units, trained)
    whole = libraries + WEIGHT_BYTES * parameters if sharded else 0  # until it is divided, as it gets a new head
    return Memory(memory.device if count_gpus(training.device) else max(memory.device, whole), max(memory.host, whole))


def _without_class(job: FinetuneJob) -> FinetuneJob:
    """The job as far as it can be checked while its classes are not known."""
    return job.model_copy(update={"evaluation": job.evaluation.model_copy(update={"positive_class": None})})


def _look(
    store: Store, job: FinetuneJob, source: str, encoded: ArtifactRef | None, progress: Progress
) -> tuple[dict[str, Any], Known]:
    """What is known of the data, as an encoded set's details say it, and to be told; without a plan."""
    if encoded is not None:
        details = encoded_details(store, encoded.key)
        counts = details["splits"][TRAIN].get("class_counts")
        _check_class_weights(job, details["classes"], counts)
        lengths = recorded_lengths(details, details["max_length"])
        return details, Known(split_sizes(details), f"encoded already: {encoded.key}", None, lengths, counts)
    encoder = load_text_encoder(source, job.data)
    look = look_at_labelled(store, job.data, encoder, progress)
    _check_class_weights(job, look.classes, look.counts)
    classes = look.classes or look.seen or ["0", "1"] if job.data.task != "regression" else None
    details = {
        "task": job.data.task,
        "classes": classes,
        "pad_id": 0,
        "vocab_size": 0,
        "max_length": encoder.max_length,
    }
    return details, Known(look.splits, look.told, None, look.lengths, look.balance)


def _check_class_weights(job: FinetuneJob, classes: list[str] | None, counts: dict[str, int] | None) -> None:
    if job.training.class_weights is not None and classes is not None:
        find_class_weights(job.training.class_weights, classes, counts)
