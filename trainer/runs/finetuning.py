"""What decides the outcome of a fine-tuning run."""

from pathlib import Path
from typing import Any

from trainer.config.finetuning import FinetuneJob
from trainer.metrics.measures import metric_identity
from trainer.order.epoch_order import FORMAT as EPOCH_ORDER
from trainer.pretrained.finding import find_model
from trainer.runs.base_model import describe_base
from trainer.runs.run import Run, make_run, one_spelling
from trainer.store.manifest import ArtifactRef
from trainer.store.storage import Store


def identify(job: FinetuneJob, data: ArtifactRef) -> Run:
    """The run that a job and its encoded set make."""
    found = find_model(Store(job.store), job.model.pretrained, hub=True)
    base = describe_base(job.model.pretrained, Path(found.folder), found.origin)
    made_from: dict[str, Any] = {"data": {job.data.name: data.fingerprint}, "model": found.files, "order": EPOCH_ORDER}
    if job.model.lora is not None:
        made_from["lora"] = one_spelling(job.model.lora.model_dump())
    for name in ("class_weights", "label_smoothing"):  # without them runs are named as before there were any
        if said := getattr(job.training, name):
            made_from[name] = one_spelling(said)
    start = {"origin": found.origin, "key": found.key}
    return make_run(job, made_from, _measurement(job), [data.key], start, base, renews_data=True)


def _measurement(job: FinetuneJob) -> dict[str, Any]:
    """The evaluation's settings, with the contents of metric files in place of their paths."""
    settings = job.evaluation.model_dump()
    if job.evaluation.metrics:
        settings["metrics"] = [metric_identity(name) for name in job.evaluation.metrics]
    return settings
