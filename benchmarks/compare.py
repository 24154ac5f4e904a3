"""`headrace list` of a thousand runs as a process, against a bound of two seconds and against its imports alone."""

import os
import shutil
import statistics
import tempfile
from itertools import cycle, islice
from pathlib import Path

from benchmarks.jobs import run_job
from benchmarks.measure import run_timed, say, spread
from tests.support import seal_copy, sealed_lines, small_job, write_corpora
from tests.trainer.labelled_pairs import finetune_job, write_pairs
from trainer.config.jobs import PipelineJob
from trainer.config.labelled import FinetuneJob
from trainer.kinds.kind import identify_run
from trainer.records.plans import PreparedData
from trainer.records.sealed import require_sealed
from trainer.store.manifest import ArtifactRef
from trainer.store.names import CONFIG, EVALUATION, FINAL, METRICS_FILE
from trainer.store.storage import Store
from trainer.training.identity import TrainingData, claim_run
from trainer.training.metrics_reader import read_records

RUNS, ROUNDS, BOUND_SECONDS = 1000, 5, 2.0
RECORDS = 2000
"""Records of each run, as many as a run of 20,000 steps writes."""

UNFINISHED = 10
"""One run in `UNFINISHED` has no final model yet."""

NEWEST = 1_760_000_000
DAY = 86_400


def make_store(folder: Path) -> Store:
    """A store of `RUNS` runs, half of them pretraining: two real ones, and copies of them with other settings."""
    raw, pairs, url = write_corpora(folder / "raw"), write_pairs(folder / "pairs"), folder / "store"
    base, tuned = (
        small_job(raw, url),
        finetune_job(pairs, url, "runs/base/final", training__max_steps=6, training__epochs=None),
    )
    store = Store(str(url))
    for job, name in ((base, "base"), (tuned, "tuned")):
        run_job(job, "trainer", name)
        lengthen(store, f"runs/{name}")
    for number in range(RUNS - 2):
        name, job = ("base", base) if number % 2 else ("tuned", tuned)
        copy_run(store, name, job, number)
    return store


def lengthen(store: Store, run: str) -> None:
    """Repeat the records of a short run up to the number of a long run."""
    key, (*records, end) = f"{run}/{METRICS_FILE}", read_records(store, run)
    longer = [*islice(cycle(records), RECORDS - 1), end]
    store.write_bytes(key, sealed_lines(key, longer))


def copy_run(store: Store, origin: str, job: PipelineJob | FinetuneJob, number: int) -> None:
    """Copy a run with hard links to its files, but with its own configuration and start date."""
    source, key = Path(str(store.local), "runs", origin), f"runs/run-{number:04}"
    target = Path(str(store.local), key)
    shutil.copytree(source, target, copy_function=os.link)
    seal_copy(store, f"runs/{origin}", store, key)
    (target / CONFIG).unlink()
    training = job.training.model_copy(update={"seed": number, "learning_rate": 1e-3 / (1 + number % 7)})
    other = job.model_copy(update={"run": key.removeprefix("runs/"), "training": training})
    data = data_of(store, origin)
    claim_run(store, identify_run(other, data), other, data)
    (events,) = (target / "tensorboard").glob("events.*")
    events.rename(events.with_name(f"events.out.tfevents.{NEWEST - number * DAY}.host.1.0"))
    if number % UNFINISHED == 0:
        shutil.rmtree(target / FINAL)
        (target / EVALUATION).unlink()


def data_of(store: Store, run: str) -> TrainingData:
    """A run's training data."""
    named = require_sealed(store, f"runs/{run}/{CONFIG}")["data"]
    return PreparedData(**named) if "shards" in named else ArtifactRef(**named)


def main() -> None:
    """Create the store and time the command."""
    print(f"compare: the list of {RUNS:,} runs", flush=True)
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as name:
        store = make_store(Path(name))
        starts, lists = [], []
        before = os.times()
        for _ in range(ROUNDS):
            lists.append(run_timed(["-m", "flows.command", "list", store.url]))
        after = os.times()
        for _ in range(ROUNDS):
            starts.append(run_timed(["-c", "import trainer.registry.listing"]))
        say(f"seconds / {BOUND_SECONDS:g} s", spread([seconds / BOUND_SECONDS for seconds in lists]), "at most 1")
        say(
            "seconds, of which Python's start and imports",
            f"{statistics.median(lists):.2f}, {statistics.median(starts):.2f}",
        )
        busy = after.children_user + after.children_system - before.children_user - before.children_system
        say("processor seconds; the rest is other work on this machine", f"{busy / ROUNDS:.2f}")


if __name__ == "__main__":
    main()
