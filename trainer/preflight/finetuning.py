"""The look at a fine-tuning job before long work starts: store, devices, batches, model, tokenizer, metrics."""

from typing import Any

from transformers import AutoModelForSequenceClassification

from trainer.common.progress import Progress
from trainer.common.stopping import check_stop
from trainer.config.finetuning import FinetuneJob
from trainer.evaluation.predicting import check_best_by, metric_names
from trainer.labelled.encoded import encoded_details, split_sizes
from trainer.labelled.encoding import find_encoded
from trainer.labelled.look import look_at_labelled
from trainer.models.causal import count_parameters, count_units
from trainer.models.classifiers import classifier_config
from trainer.order.plan import make_finetune_plan
from trainer.preflight.disks import require_checkpoint_room, require_room
from trainer.preflight.pretraining import check_optimization, checkpoint_bytes, run_bytes
from trainer.pretrained.finding import find_model
from trainer.pretrained.weights import check_weights
from trainer.records.results import FinetunePreflight
from trainer.runs.finetuning import identify
from trainer.runs.run import check_origin
from trainer.store.manifest import ArtifactRef
from trainer.store.storage import Store


def finetune_preflight(job: FinetuneJob, progress: Progress) -> FinetunePreflight:
    """Check everything that can be checked before work starts. Raises the `PipelineError` of whatever is wrong."""
    store = Store(job.store)
    store.check_writable()
    store.sweep()
    check_origin(store, job)
    ranks = check_optimization(job)
    source = find_model(store, job.model.pretrained, hub=True).folder
    check_weights(source)
    check_stop()
    encoded = find_encoded(store, job, source)
    details, splits, told = _look(store, job, encoded, progress)
    check_stop()
    parameters = count_parameters(classifier_config(source, details), job.model.attention, AutoModelForSequenceClassification)
    if job.training.sharding == "fsdp":
        count_units(classifier_config(source, details), job.model.attention, AutoModelForSequenceClassification)
    classes: list[str] | None = details["classes"]
    check_best_by(job if splits else _without_class(job), classes)
    plan = make_finetune_plan(job.training, splits, ranks) if splits else None
    epochs = plan.total_steps // plan.steps_per_epoch if plan else job.training.epochs or 0

    def present(folder: str) -> int:
        return store.used_bytes(identify(job, encoded).key) if encoded else 0

    require_room(store, {"runs": run_bytes(job.training, parameters, epochs)}, present)
    require_checkpoint_room(store, checkpoint_bytes(parameters))
    return FinetunePreflight(
        model=job.model.pretrained,
        parameters=parameters,
        ranks=ranks,
        metrics=metric_names(job, len(classes or [])),
        looked_at=told,
        splits=splits,
        plan=plan,
    )


def _without_class(job: FinetuneJob) -> FinetuneJob:
    """The job as far as it can be checked while its classes are not known."""
    return job.model_copy(update={"evaluation": job.evaluation.model_copy(update={"positive_class": None})})


def _look(
    store: Store, job: FinetuneJob, encoded: ArtifactRef | None, progress: Progress
) -> tuple[dict[str, Any], dict[str, int] | None, str]:
    """What is known of the data: as an encoded set's details say it, the sizes of its splits, and what was looked at."""
    if encoded is not None:
        details = encoded_details(store, encoded.key)
        return details, split_sizes(details), f"encoded already: {encoded.key}"
    look = look_at_labelled(store, job.data, progress)
    classes = look.classes or ["0", "1"] if job.data.task == "classification" else None
    return {"classes": classes, "pad_id": 0, "vocab_size": 0}, look.splits, look.told
