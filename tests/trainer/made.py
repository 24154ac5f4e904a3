"""Steps and pipelines in this process, by the names that tests know them by."""

from pathlib import Path

from trainer.common.progress import Progress
from trainer.config.chat import ChatJob
from trainer.config.jobs import PrepareJob
from trainer.config.labelled import FinetuneJob
from trainer.kinds.pretraining.kind import prepare as prepare_data
from trainer.records.plans import PreparedData
from trainer.records.steps import here, look_for
from trainer.store.manifest import ArtifactRef


def prepare(job: PrepareJob, progress: Progress) -> PreparedData:
    return prepare_data(job, here(progress))


def curate(job: PrepareJob, progress: Progress) -> ArtifactRef:
    return here(progress)("curate", job)


def prepare_tokenizer(job: PrepareJob, progress: Progress, decisions: ArtifactRef | None = None) -> ArtifactRef:
    return here(progress)("tokenizer", job, decisions=decisions)


def find_tokenizer(job: PrepareJob) -> ArtifactRef | None:
    return look_for("tokenizer", job)


def prepare_corpus(job: PrepareJob, name: str, tokenizer: ArtifactRef, progress: Progress) -> ArtifactRef:
    return here(progress)("tokenize", job, corpus=name, tokenizer=tokenizer)


def encode(job: FinetuneJob, progress: Progress, model_folder: Path | None = None) -> ArtifactRef:
    return here(progress)("encode", job, model_folder=model_folder)


def find_encoded(job: FinetuneJob, model_folder: Path) -> ArtifactRef | None:
    return look_for("encode", job, model_folder=model_folder)


def encode_conversations(job: ChatJob, progress: Progress, model_folder: Path | None = None) -> ArtifactRef:
    return here(progress)("encode", job, model_folder=model_folder)
