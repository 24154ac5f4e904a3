"""A table with a small job of each kind, the parts that others are made of, and runs of them."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from tests.processes import finish
from tests.support import only_run, small_values, with_changes, write_config
from tests.trainer.chats import chat_values
from tests.trainer.labelled_pairs import finetune_values
from tests.trainer.labelled_words import word_values
from tests.trainer.preferences import preference_values
from trainer.config.files import validate_job
from trainer.config.kinds import kind_of_run
from trainer.config.runs import RunJob

Ask = Callable[[str], Any]
Job = Callable[[Ask, Path], dict[str, Any]]
"""The values of a small job with a store, from fixtures that it asks for by name."""

LONG = {
    "training__max_steps": 64, "training__micro_batch": 4, "training__evaluate_every": 9, "training__save_every": 1,
}  # fmt: skip
"""Changes for a run that has time to be interrupted: it saves each step, accumulates, and goes into a second epoch."""

OFTEN = {"training__save_every": 1, "training__micro_batch": 3, "training__global_batch": 12}
"""Changes for a fine-tuning run that has time to be interrupted; its epochs end with a smaller batch."""

IN_TURN = {"training__save_every": 1, "training__micro_batch": 1, "training__global_batch": 2}
"""The same for a run on conversations."""


def pretraining(**changes: Any) -> Job:
    return lambda ask, store: small_values(ask("raw"), store, **changes)


def classes(model: str = "pretrained", **changes: Any) -> Job:
    return lambda ask, store: finetune_values(ask("pairs"), store, ask(model), **changes)


def labels_of_words(**changes: Any) -> Job:
    return lambda ask, store: word_values(ask("words"), store, ask("pretrained"), **changes)


def chatting(**changes: Any) -> Job:
    return lambda ask, store: chat_values(ask("chats"), store, ask("llama"), **changes)


def preferring(**changes: Any) -> Job:
    return lambda ask, store: preference_values(ask("preferences"), store, ask("llama"), **changes)


OF_EACH_KIND: dict[str, Job] = {
    "pretraining": pretraining(**LONG),
    "fine-tuning": classes(**OFTEN),
    "instruction tuning": chatting(**IN_TURN),
    "preference tuning": preferring(**IN_TURN),
}
"""A kind that has its line here goes through all of `test_life_cycles` and `test_killed_runs`."""


class Finished(NamedTuple):
    """A run that went from its first step to its last in one process."""

    store: Path
    run: str

    @property
    def folder(self) -> Path:
        return self.store / self.run

    @property
    def name(self) -> str:
        return self.run.removeprefix("runs/")

    def copy(self, folder: Path) -> "Finished":
        """The same in a store of a test's own, to be written to."""
        return Finished(Path(shutil.copytree(self.store, folder / "store")), self.run)

    def job(self, **changes: Any) -> RunJob:
        """Its job as its folder holds it, in the store where that is now."""
        config = json.loads((self.folder / "config.json").read_text())
        values = with_changes({**config["job"], "store": str(self.store)}, changes)
        job: RunJob = validate_job(kind_of_run(config).schema, values, "test")
        return job


def lay_out(job: Job, ask: Ask, folder: Path) -> Path:
    """Write a job's file, beside its store, in which corpora are prepared already; returns the file's path."""
    folder.mkdir(parents=True, exist_ok=True)
    values = job(ask, folder / "store")
    if "corpora" in values["data"]:
        shutil.copytree(ask("prepared")[0], folder / "store")
    return write_config(folder / "job.yaml", values)


def run_whole(job: Job, ask: Ask, folder: Path) -> Finished:
    """Have a process train a job, measure its model and report."""
    finish(folder / "said", lay_out(job, ask, folder))
    return Finished(folder / "store", only_run(folder / "store"))
