"""Quality of fine-tuned models against a plain loop, in paired runs with the same data, new head and seed.

    python -m benchmarks.paired DATA MODEL [--tasks cola mrpc stsb] [--seeds 8] [--first-seed 0] [--examples N]

DATA holds the tasks' folders (cola, mrpc, stsb), each with train.tsv and validation.tsv; a missing one is generated
from the standard library's documentation. MODEL is the folder of a pretrained model. Three ways run alternately in this
process for each seed: the plain loop of the Hugging Face course, headrace with batches by length, and headrace with
random batches. Each pair of ways is compared with a paired t-test, which gives the 95 % interval, and Wilcoxon's
signed-rank test.
"""

import argparse
import contextlib
import json
import logging
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
from scipy import stats

from benchmarks.labelled_tasks import make_task
from benchmarks.measure import say, spread
from benchmarks.plain_loop import EPOCHS, TASKS, Task, job_values, train_plainly
from trainer.config.files import validate_job
from trainer.config.labelled import FinetuneJob

METRICS = {"cola": "matthews_correlation", "mrpc": "accuracy", "stsb": "pearsonr"}
WAYS = ("plain loop", "by length", "random")
PAIRS = (("by length", "plain loop"), ("random", "plain loop"), ("by length", "random"))


def main(data: str, model: str, tasks: list[str], seeds: int, first_seed: int, examples: int | None) -> None:
    """Run every task, seed and way, and print the figures and the tests."""
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    differences: dict[tuple[str, str], list[np.ndarray]] = {pair: [] for pair in PAIRS}
    with tempfile.TemporaryDirectory(prefix="headrace-paired-") as name:
        folder = Path(name)
        for task in map(TASKS.__getitem__, tasks):
            found = Path(data, task.name)
            source = found if found.is_dir() else make_task(task.name, folder)
            train = first_lines(source / "train.tsv", folder / "first" / task.name, examples)
            print(
                f"{task.name}, {'of its own' if found.is_dir() else 'made'}: {seeds} seeds of {EPOCHS} epochs",
                flush=True,
            )
            scores, seconds = run_task(
                task, (train, source / "validation.tsv"), model, range(first_seed, first_seed + seeds), folder
            )
            for pair in PAIRS:
                differences[pair].append(scores[pair[0]] - scores[pair[1]])
                say(f"{METRICS[task.name]}: {pair[0]} - {pair[1]}", compared(differences[pair][-1]))
            for way in WAYS[1:]:
                say(f"processor time: {way} / plain loop", spread(list(seconds[way] / seconds["plain loop"])))
    print("all tasks together")
    for pair, found_each in differences.items():
        say(f"{pair[0]} - {pair[1]}", compared(np.concatenate(found_each)))


def first_lines(path: Path, folder: Path, examples: int | None) -> Path:
    """The file, or a copy in a folder with its header and first examples."""
    if examples is None:
        return path
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    folder.mkdir(parents=True)
    (folder / path.name).write_text("".join(lines[: examples + 1]), encoding="utf-8")
    return folder / path.name


def run_task(
    task: Task, files: tuple[Path, Path], model: str, seeds: range, folder: Path
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """The deciding figure and the processor seconds of each way, by seed; `files` are train and validation."""
    paths = (str(files[0]), str(files[1]))
    ways: dict[str, Callable[[int], float]] = {
        "plain loop": lambda seed: train_plainly(task, *paths, model, seed, str(folder / "cache"))[METRICS[task.name]],
        "by length": lambda seed: run_headrace(task, paths, model, seed, folder, by_length=True),
        "random": lambda seed: run_headrace(task, paths, model, seed, folder, by_length=False),
    }
    scores, seconds = {way: np.zeros(len(seeds)) for way in ways}, {way: np.zeros(len(seeds)) for way in ways}
    for number, seed in enumerate(seeds):
        for turn in range(len(WAYS)):
            way = WAYS[(seed + turn) % len(WAYS)]
            started = time.process_time()
            scores[way][number] = ways[way](seed)
            seconds[way][number] = time.process_time() - started
        say(f"seed {seed}: " + ", ".join(WAYS), " ".join(f"{scores[way][number]:.4f}" for way in WAYS))
    return scores, seconds


def run_headrace(task: Task, paths: tuple[str, str], model: str, seed: int, folder: Path, by_length: bool) -> float:
    """Run a job from the raw files to its evaluation; return the deciding figure."""
    from trainer.jobs import train as train_job

    metric, run = METRICS[task.name], f"{task.name}-{seed}-{'length' if by_length else 'random'}"
    values = job_values(task, *paths, model, seed, str(folder / "store"), run)
    values["training"] |= {"group_by_length": by_length, "keep_last": 1}
    values["evaluation"] = {"metrics": [metric]}
    with contextlib.redirect_stdout(None), contextlib.redirect_stderr(None):
        train_job(validate_job(FinetuneJob, values, run))
    evaluation = json.loads((folder / "store" / "runs" / run / "eval.json").read_text())
    return float(evaluation["groups"]["validation"]["figures"][metric])


def compared(differences: np.ndarray) -> str:
    """The mean difference with its interval, and the p-values of both tests."""
    t_test = stats.ttest_1samp(differences, 0.0)
    low, high = t_test.confidence_interval(0.95)
    signed = stats.wilcoxon(differences).pvalue if np.any(differences) else 1.0
    return f"{differences.mean():+.4f} [{low:+.4f}, {high:+.4f}], t p={t_test.pvalue:.2f}, signed ranks p={signed:.2f}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("data", metavar="DATA")
    parser.add_argument("model", metavar="MODEL")
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--examples", type=int, help="most training examples of a task; default: all")
    main(**vars(parser.parse_args()))
