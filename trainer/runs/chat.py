"""What decides the outcome of a run on conversations."""

from pathlib import Path
from typing import Any

from trainer.config.chat import ChatJob
from trainer.order.epoch_order import FORMAT as EPOCH_ORDER
from trainer.order.packing import FORMAT as PACKING
from trainer.pretrained.finding import find_model
from trainer.runs.base_model import describe_base
from trainer.runs.run import Run, make_run, one_spelling
from trainer.store.manifest import ArtifactRef
from trainer.store.storage import Store


def identify(job: ChatJob, data: ArtifactRef) -> Run:
    """The run that a job and its encoded conversations make."""
    found = find_model(Store(job.store), job.model.pretrained, hub=True)
    base = describe_base(job.model.pretrained, Path(found.folder), found.origin)
    made_from: dict[str, Any] = {
        "data": {job.data.name: data.fingerprint},
        "model": found.files,
        "order": EPOCH_ORDER,
        "packing": PACKING if job.data.packing else None,
    }
    if job.model.lora is not None:
        made_from["lora"] = one_spelling(job.model.lora.model_dump())
    start = {"origin": found.origin, "key": found.key}
    return make_run(job, made_from, {}, [data.key], start, base, renews_data=True)
