"""The look at a fine-tuning job before long work starts: store, devices, batches, model, tokenizer, metrics."""

from typing import Any

from transformers import AutoModelForSequenceClassification

from trainer.classifiers import classifier_config
from trainer.encoded import encoded_details, split_sizes
from trainer.encoding import find_encoded
from trainer.finetune_config import FinetuneJob
from trainer.models import check_weights, count_parameters
from trainer.plan import make_finetune_plan
from trainer.predicting import check_best_by, metric_names
from trainer.preflight import check_optimization
from trainer.pretrained import find_model
from trainer.progress import Progress
from trainer.results import FinetunePreflight
from trainer.runs import check_origin
from trainer.storage import Store


def finetune_preflight(job: FinetuneJob, progress: Progress) -> FinetunePreflight:
    """Check everything that can be checked before work starts. Raises the `PipelineError` of whatever is wrong."""
    store = Store(job.store)
    store.check_writable()
    store.sweep()
    check_origin(store, job)
    ranks = check_optimization(job.training)
    source = find_model(store, job.model.pretrained, hub=True).folder
    encoded = find_encoded(store, job, source)
    known = encoded_details(store, encoded.key) if encoded else None
    classes = job.data.classes or ["0", "1"] if job.data.task == "classification" else None
    details: dict[str, Any] = known or {"classes": classes, "pad_id": 0, "vocab_size": 0}
    check_weights(source)
    parameters = count_parameters(classifier_config(source, details), job.model.attention, AutoModelForSequenceClassification)
    count = len(details["classes"] or [])
    check_best_by(job, count)
    splits = split_sizes(known) if known else None
    return FinetunePreflight(
        model=job.model.pretrained,
        parameters=parameters,
        ranks=ranks,
        metrics=metric_names(job, count),
        splits=splits,
        plan=make_finetune_plan(job.training, splits, ranks) if splits else None,
    )
