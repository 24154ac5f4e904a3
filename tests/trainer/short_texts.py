"""A corpus of short texts, of which a window holds several, prepared for training."""

import itertools
import json
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import numpy as np

from tests.support import NO_DROPOUT, SMALL_MODEL, small_job
from trainer.config.jobs import PipelineJob
from trainer.data.dataset import Batch
from trainer.data.shards import TRAIN, VALIDATION, open_shards, shard_file
from trainer.kinds.pretraining.workload import Pretraining
from trainer.records.plans import PreparedData
from trainer.store.storage import Store


def write_short_texts(folder: Path) -> Path:
    """Two corpora: notes.jsonl of texts of 1 to 40 characters, and a few longer ones in more.jsonl."""
    text = "\n".join(topics[name] for name in sorted(topics))
    draw = np.random.default_rng(0)
    folder.mkdir(parents=True, exist_ok=True)
    for name, count, longest in (("notes", 500, 40), ("more", 8, 500)):
        starts, lengths = draw.integers(0, len(text) - longest, count), draw.integers(1, longest, count)
        lines = [
            json.dumps({"text": text[a : a + n]}) + "\n" for a, n in zip(starts.tolist(), lengths.tolist(), strict=True)
        ]
        (folder / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")
    return folder


def short_job(raw: Path, store: Path, **changes: Any) -> PipelineJob:
    """A small job on these texts, without dropout."""
    return small_job(raw, store, **{**short_values(raw), **changes})


def short_values(raw: Path) -> dict[str, Any]:
    """What is changed for that in a small job."""
    corpora = [{"name": name, "paths": [f"{raw}/{name}.jsonl"], "format": "jsonl"} for name in ("notes", "more")]
    return {"data__corpora": corpora, "model__config": {**SMALL_MODEL, **NO_DROPOUT}}


def read_documents(store: Store, key: str, held_out: bool = False) -> list[list[list[int]]]:
    """The tokens of each document of each shard of a set, with the end token that follows it."""
    found, side = open_shards(store, key), VALIDATION if held_out else TRAIN
    shards = []
    for number in range(found.details["num_shards"]):
        folder = store.fetch(f"{key}/{shard_file(side, number, 'bin')}").parent
        tokens = np.fromfile(folder / shard_file(side, number, "bin"), dtype=found.details["dtype"])
        starts = np.fromfile(folder / shard_file(side, number, "idx"), dtype="<u8")
        pairs = itertools.pairwise(starts.tolist())
        shards.append([tokens[start:stop].tolist() for start, stop in pairs])
    return shards


def open_work(job: PipelineJob, data: PreparedData, ranks: int = 1) -> Pretraining:
    return Pretraining(job, Store(job.store), data, ranks)


def rows_of(batch: Batch) -> list[tuple[list[int], list[int], list[int]]]:
    """The token ids, the targets and the positions of each row of a rank's batch."""
    names = ("input_ids", "labels", "position_ids")
    return [
        row for inputs in batch.micro_batches for row in zip(*(inputs[name].tolist() for name in names), strict=True)
    ]
