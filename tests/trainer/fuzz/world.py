"""A small store with everything in it: a finished, an interrupted and a fine-tuned run, champions, a pin and a hold."""

import json
import os
import shutil
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import trainer.store.checked_files
import trainer.training.loop
from tests.support import settled, write_rows
from tests.trainer.made import encode, prepare
from trainer.common.errors import Preempted
from trainer.common.progress import silent
from trainer.config.evaluation import EvaluationConfig
from trainer.config.files import validate_job
from trainer.config.jobs import EvaluateJob, PipelineJob
from trainer.config.labelled import FinetuneJob
from trainer.data import shard_building
from trainer.kinds.pretraining.kind import evaluation_of
from trainer.pipelines.any_kind import evaluate_checkpoint, evaluate_run, train
from trainer.records.lease import SHORT, _hold
from trainer.records.sealed import write_sealed
from trainer.registry.promotion import promote
from trainer.registry.references import pin
from trainer.registry.report import make_report
from trainer.store.storage import Store
from trainer.training.tracking import Board

FINISHED, STOPPED, TUNED, ANOTHER = "runs/finished", "runs/stopped", "runs/tuned", "runs/another"
CHAMPION, RIVAL = "best", "rival"
"""The finished run is champion under one name, and another one, which it is held against, under the other."""
STOPS_AFTER = 3
TEXT = "the quick brown fox jumps over a lazy dog and then one more time it runs away from all of them"
WORDS = TEXT.split()


class World(NamedTuple):
    """Where the raw files and the store are."""

    raw: Path
    store: Path

    @property
    def open(self) -> Store:
        return Store(str(self.store))

    def pretraining(self, run: str, **training: object) -> PipelineJob:
        """The job of a run: two curated corpora, a GPT-2 of one layer, four steps."""
        values = {
            "store": str(self.store), "name": "fuzz", "run": run.removeprefix("runs/"),
            "data": {
                "corpora": [
                    {"name": "prose", "paths": [f"{self.raw}/prose/*.txt"]},
                    {"name": "lines", "paths": [f"{self.raw}/lines.jsonl"], "format": "jsonl"},
                ],
                "tokenizer": {"vocab_size": 280, "engine": "tokenizers"},
                "shards": {"num_shards": 2, "piece_bytes": 1024},
                "validation_fraction": 0.3, "workers": 1,
                "curation": {
                    "filters": [{"kind": "length", "least_bytes": 30}],
                    "decontaminate": {"ngram": 5, "files": [{"paths": [f"{self.raw}/kept-out.txt"]}]},
                },
            },
            "model": {"config": {"model_type": "gpt2", "n_layer": 1, "n_embd": 8, "n_head": 1, "n_positions": 16}},
            "training": {
                "max_steps": 4, "context": 16, "global_batch": 2, "learning_rate": 1e-2, "log_every": 1,
                "save_every": 1,
                "evaluate_every": 2, "keep_last": 2, "device": "cpu", **training,
            },
            "evaluation": {"max_windows": 4, "during_training": 2, "prompts": ["the "], "new_tokens": 2},
            "promotion": {"name": CHAMPION, "better_by": 0.0},
        }  # fmt: skip
        return validate_job(PipelineJob, values, "fuzz")

    def tuning(self) -> FinetuneJob:
        """The job of the fine-tuned run, which begins with the finished one."""
        values = {
            "store": str(self.store), "name": "fuzz", "run": "tuned",
            "data": {
                "name": "pairs", "source": "jsonl", "train": [f"{self.raw}/train.jsonl"],
                "validation": [f"{self.raw}/validation.jsonl"], "test": [f"{self.raw}/test.jsonl"],
                "text_columns": ["text"],
                "classes": ["short", "long"], "max_length": 12,
            },
            "model": {"pretrained": FINISHED},
            "training": {
                "max_steps": 3, "global_batch": 4, "learning_rate": 1e-2, "log_every": 1, "save_every": 1,
                "device": "cpu",
            },
        }  # fmt: skip
        return validate_job(FinetuneJob, values, "fuzz")


def write_raw(folder: Path) -> None:
    """Some hundred words in a few files, the same each time."""
    (folder / "prose").mkdir(parents=True)
    for number in range(8):
        words = [WORDS[(number * 7 + place * place) % len(WORDS)] for place in range(40 + number)]
        (folder / "prose" / f"{number}.txt").write_text(" ".join(words) + "\n")
    lines = [" ".join(WORDS[(number + place * 3) % len(WORDS)] for place in range(12)) for number in range(16)]
    lines += [lines[3], "few words"]
    (folder / "lines.jsonl").write_text("".join(json.dumps({"text": line}) + "\n" for line in lines))
    (folder / "kept-out.txt").write_text(f"{lines[5]}\n")
    for split, count in {"train": 12, "validation": 6, "test": 4}.items():
        rows = [
            {"text": " ".join(WORDS[n % 5 : n % 5 + 2 + 4 * (n % 2)]), "label": ("short", "long")[n % 2]}
            for n in range(count)
        ]
        if split == "test":
            rows = [{"text": row["text"], "label": None} for row in rows]
        write_rows(folder / f"{split}.jsonl", rows)
    settled(folder)


def build(folder: Path) -> World:
    """Make all of it, once."""
    world = World(folder / "raw", folder / "store")
    write_raw(world.raw)
    store, quiet = world.open, silent()
    job = world.pretraining(FINISHED)
    train(job, quiet, prepare(job.preparation(), quiet))
    measured = evaluate_checkpoint(evaluation_of(job, FINISHED), quiet)
    options = EvaluationConfig(max_windows=2)
    evaluate_checkpoint(
        EvaluateJob(store=store.url, checkpoint=f"{FINISHED}/checkpoint-best", evaluation=options), quiet
    )
    promote(store, CHAMPION, FINISHED, measured.figures(), "by hand", measured.measured_on)
    make_report(store, FINISHED)
    another = world.pretraining(ANOTHER, learning_rate=1e-3)
    train(another, quiet)
    its = evaluate_checkpoint(evaluation_of(another, ANOTHER), quiet)
    promote(store, RIVAL, ANOTHER, its.figures(), "by hand", its.measured_on)
    _stop_in_time(world.pretraining(STOPPED, learning_rate=2e-2))
    tuning = world.tuning()
    train(tuning, quiet, encode(tuning, quiet))
    evaluate_run(tuning, TUNED, quiet)
    make_report(store, TUNED)
    pin(store, "finished")
    _hold(store, f"{TUNED}", SHORT * 1000)
    write_sealed(store, f"{STOPPED}/lease.json", dead_lease())
    return world


def dead_lease() -> dict[str, object]:
    """What a process left that was killed long ago, elsewhere."""
    then = "2026-01-01T00:00:00+00:00"
    return {
        "id": "0" * 32, "since": then, "beat": then, "host": "elsewhere", "pid": 1, "machine": "another",
        "started": "1",
    }  # fmt: skip


def _stop_in_time(job: PipelineJob) -> None:
    """Ask the training to stop in its third step."""
    steps = []
    step = trainer.training.loop.train_step

    def counted(*arguments: object) -> object:
        steps.append(1)
        if len(steps) == STOPS_AFTER:
            os.kill(os.getpid(), signal.SIGTERM)
        return step(*arguments)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer.training.loop, "train_step", counted)
        with pytest.raises(Preempted):
            train(job, silent())


def copy(world: World, place: Path) -> World:
    """The store with the same bytes under other names: what is damaged must be replaced, not written to."""
    shutil.copytree(world.store, place, copy_function=os.link, ignore=shutil.ignore_patterns("logs", "tensorboard"))
    return World(world.raw, place)


@contextmanager
def in_process() -> Iterator[None]:
    """Leave out what takes most of a case's time and is not read back: processes, TensorBoard, waiting for the disk."""

    def threads(workers: int, mp_context: object, initializer: object, initargs: tuple[Any, ...]) -> ThreadPoolExecutor:
        shard_building._encoder.cache_clear()
        _, shard_building._done, shard_building._broken_off, *_ = initargs
        return ThreadPoolExecutor(1)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shard_building, "ProcessPoolExecutor", threads)
        patch.setattr(Board, "_add", lambda board, event: None)
        patch.setattr(os, "fsync", lambda descriptor: None)
        # Files that are minutes old are remembered, and these are not.
        patch.setattr(trainer.store.checked_files, "RACY_SECONDS", -1.0)
        yield
