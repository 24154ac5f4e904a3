"""A pipeline's steps as Prefect tasks."""

from functools import partial
from typing import Any

from tasks.curation import curate
from tasks.encoding import encode
from tasks.tokenization import prepare_tokenizer, tokenize_corpus
from trainer.store.manifest import ArtifactRef

TASKS: dict[str, Any] = {
    "curate": curate,
    "tokenizer": prepare_tokenizer,
    "tokenize": tokenize_corpus,
    "encode": partial(encode, step="encode"),
    "encode-chat": partial(encode, step="encode-chat"),
}


def as_task(name: str, job: Any, **made: Any) -> ArtifactRef:
    """A `Do` that has a task of the flow make each step."""
    ref: ArtifactRef = TASKS[name](job, **made, return_state=True).result()
    return ref
