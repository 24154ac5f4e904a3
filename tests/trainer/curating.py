"""Small corpora with planted documents, curated in real worker processes, and what was decided of them."""

import random
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from tests.support import write_rows
from tests.trainer.made import curate
from tests.trainer.raw_files import sources
from trainer.common.errors import PipelineError
from trainer.common.progress import silent
from trainer.config.jobs import PrepareJob
from trainer.data.decisions import open_decisions, read_decisions
from trainer.store.manifest import ArtifactRef
from trainer.store.storage import Store


class Here:
    """An executor that does units of work in this process."""

    most = None
    done = 0

    def __init__(self, processes: int) -> None: ...

    def __enter__(self) -> "Here":
        return self

    def __exit__(self, *error: object) -> None: ...

    def submit(self, work: Callable[..., Any], *arguments: Any) -> "Future[Any]":
        future: Future[Any] = Future()
        try:
            future.set_result(work(*arguments, lambda size: None))
        except PipelineError as error:
            future.set_exception(error)
        return future


WORDS = sorted({word for text in sources().values() for word in text.split() if word.isalpha()})


def prose(seed: int, words: int) -> list[str]:
    """Words drawn from the standard library's own."""
    return random.Random(seed).choices(WORDS, k=words)


def write_documents(path: Path, texts: Sequence[str | Mapping[str, Any]]) -> Path:
    """A jsonl file of texts, or of whole records."""
    return Path(write_rows(path, ({"text": text} if isinstance(text, str) else text for text in texts)))


def curated_job(store: Path, paths_of: Mapping[str, str], curation: Mapping[str, Any], **data: Any) -> PrepareJob:
    """A job that curates corpora of jsonl files, by name with their paths."""
    listed: list[dict[str, Any]] = [
        {"name": name, "paths": [paths], "format": "jsonl"} for name, paths in paths_of.items()
    ]
    values = {
        "corpora": listed, "tokenizer": {"vocab_size": 300}, "shards": {"num_shards": 2, "piece_bytes": 4096},
        "validation_fraction": 0.1, "workers": 1, "curation": curation,
    }  # fmt: skip
    return PrepareJob.model_validate({"store": str(store), "data": {**values, **data}})


def job_on(
    folder: Path, texts: Sequence[str | Mapping[str, Any]], curation: Mapping[str, Any], **data: Any
) -> PrepareJob:
    """A job that curates the corpus `one`, of these documents."""
    path = write_documents(folder / "a.jsonl", texts)
    return curated_job(folder / "store", {"one": str(path)}, curation, **data)


def decide(job: PrepareJob) -> ArtifactRef:
    return curate(job, silent())


def kept_out(job: PrepareJob) -> list[int]:
    """The documents of the corpus `one` that go because they share words with an evaluation set."""
    reasons = reasons_of(job, decide(job).key, "one")
    return [number for number, reason in enumerate(reasons) if reason == "contaminated"]


def reasons_of(job: PrepareJob, key: str, corpus: str) -> list[str]:
    """Of each document of a corpus, in the order of its files, why it goes, or `kept`."""
    store = Store(job.store)
    names = ["kept", *read_decisions(store, key).details["reasons"]]
    return [names[reason] for reason in open_decisions(store, key, corpus).reasons]


def originals_of(job: PrepareJob, key: str, corpus: str) -> dict[int, int]:
    """Of each duplicate of a corpus, the document that stays in its place, counted over all corpora."""
    found = open_decisions(Store(job.store), key, corpus)
    return dict(zip(found.duplicates.tolist(), found.originals.tolist(), strict=True))
