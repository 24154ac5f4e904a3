"""What decides the outcome of a run that tunes a pretrained model on an encoded set."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainer.config.labelled import TuningJob
from trainer.data.order import FORMAT as EPOCH_ORDER
from trainer.models.pretrained import find_model
from trainer.runs.base_model import describe_base
from trainer.store.manifest import ArtifactRef
from trainer.store.storage import Store
from trainer.training.identity import Run, lora_identity, make_run


def identify_tuning(job: TuningJob, data: ArtifactRef, beside: Mapping[str, Any], selection: Mapping[str, Any]) -> Run:
    """The run that a job and its encoded set make; `beside` is what else of its kind decides the outcome, and `selection` which
    checkpoint is best."""
    found = find_model(Store(job.store), job.model.pretrained, hub=True)
    base = describe_base(job.model.pretrained, Path(found.folder), found.origin)
    made_from = {"data": {job.data.name: data.fingerprint}, "model": found.files, "order": EPOCH_ORDER, **beside}
    if job.model.lora is not None:
        made_from["lora"] = lora_identity(job.model.lora)
    start = {"origin": found.origin, "key": found.key}
    return make_run(job, made_from, selection, {"encoded set": data}, start, base, renews_data=True)
