"""The cost of checkpoints: the loop's wait with one save per minute, and against saving the same state in the loop."""

import statistics
import tempfile
import time
from functools import partial
from pathlib import Path

import torch

from benchmarks.jobs import job, raw_corpora, run_job
from benchmarks.measure import say, spread
from trainer.common.progress import silent
from trainer.config.files import read_values
from trainer.kinds.pretraining.kind import prepare
from trainer.kinds.pretraining.workload import Pretraining
from trainer.records.steps import here
from trainer.store.storage import Store
from trainer.training.checkpoint import TrainState
from trainer.training.saver import Saver, SaverOptions, take_snapshot
from trainer.training.schedules import make_schedule
from trainer.training.step import make_optimizer

MODEL = read_values("configs/quickstart.yaml", [])["model"]["config"]

PAIRS, MINUTES = 9, 3


def share_of_stalls(folder: Path) -> tuple[float, list[float]]:
    """Share of training time that the loop waits with one save per minute, and the seconds from snapshot to commit."""
    trial = run_job(job(folder, MODEL, max_steps=30, log_every=10, save_every=30), "trainer", "trial")
    a_minute = round(60 / statistics.median(r["step_seconds"] for r in trial if r["kind"] == "train"))
    whole = job(folder, MODEL, max_steps=MINUTES * a_minute + 1, log_every=10, save_every=a_minute)
    records = run_job(whole, "trainer", "minutes")
    stalls = [r["stall_seconds"] for r in records if r["kind"] == "checkpoint" and r["step"] % a_minute == 0]
    return statistics.mean(stalls) / 60, [r["seconds"] for r in records if r["kind"] == "commit"]


def compare_with_blocking(folder: Path) -> list[float]:
    """Stall of our save over that of `save_pretrained` and `torch.save` of the same state, measured alternately."""
    bench = job(folder, MODEL)
    data = prepare(bench.preparation(), here(silent()))
    store = Store(bench.store)
    model = Pretraining(bench, store, data, 1).load_model(None)
    optimizer = make_optimizer(model, bench.training)
    schedule = make_schedule(optimizer, bench.training, 100)
    ids = torch.randint(0, 1000, (2, 64))
    model(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()
    ratios = []
    with Saver(store, "runs/stalls", model, SaverOptions([], "0" * 16, keep_last=2)) as saver:
        for step in range(1, PAIRS + 1):
            started = time.perf_counter()
            saver.save(partial(
                take_snapshot, state=TrainState(step=step, attempts=step), model=model, objective=model,
                optimizer=optimizer,
                schedule=schedule, scaler=None, epoch=None,
            ))  # fmt: skip
            ours = time.perf_counter() - started
            saver.drain()
            started = time.perf_counter()
            model.save_pretrained(folder / "blocking")
            torch.save(
                {"optimizer": optimizer.state_dict(), "schedule": schedule.state_dict()},
                folder / "blocking" / "rest.pt",
            )
            ratios.append(ours / (time.perf_counter() - started))
    return ratios


def main() -> None:
    """Measure both."""
    print("checkpoints: the loop's wait for them", flush=True)
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as name:
        folder = Path(name)
        raw_corpora(folder / "raw")
        say("stall / blocking save_pretrained + torch.save", spread(compare_with_blocking(folder)), "at most 0.2")
        share, commits = share_of_stalls(folder)
        say("share of training time at one save a minute", f"{share:.2%}", "at most 1%")
        say("snapshot to commit, in the background", f"{statistics.median(commits):.2f} s")


if __name__ == "__main__":
    main()
