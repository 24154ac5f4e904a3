"""Fine-tuning on MRPC against the plain loop of the Hugging Face course with the same seeds.

    python -m benchmarks.finetuning DATA MODEL [SEEDS]

DATA is a folder with MRPC's train.tsv and validation.tsv (columns sentence1, sentence2, label; quote characters are
text), MODEL the folder of a pretrained model. Both sides run alternately as whole processes, from raw files to scores.
"""

import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.measure import run_timed, say, spread
from benchmarks.plain_loop import TASKS, job_values, train_plainly


def write_job(folder: Path, data: str, model: str, seed: int) -> Path:
    """Write the job of one seed, with its own store."""
    files = (f"{data}/train.tsv", f"{data}/validation.tsv")
    values = job_values(TASKS["mrpc"], *files, model, seed, str(folder / f"store-{seed}"), "mrpc")
    path = folder / f"job-{seed}.json"
    path.write_text(json.dumps(values))
    return path


def plain_loop(data: str, model_folder: str, seed: int, out: str) -> None:
    """Run the course's loop as a whole process."""
    files = (f"{data}/train.tsv", f"{data}/validation.tsv")
    Path(out).write_text(json.dumps(train_plainly(TASKS["mrpc"], *files, model_folder, seed, f"{out}.cache")))


def main(data: str, model: str, seeds: int = 3) -> None:
    """Run both sides for each seed and print the figures."""
    print("fine-tuning: MRPC, 1,377 steps, against the course's plain loop (whole processes)", flush=True)
    ours: list[dict[str, Any]] = []
    theirs: list[dict[str, Any]] = []
    ratios = []
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as name:
        folder = Path(name)
        for seed in range(seeds):
            mine = run_timed(["-m", "trainer", str(write_job(folder, data, model, seed))])
            run = folder / f"store-{seed}" / "runs" / "mrpc"
            ours.append(json.loads((run / "eval.json").read_text())["groups"]["validation"]["figures"])
            steps = json.loads((run / "plan.json").read_text())["total_steps"]
            out = folder / f"plain-{seed}.json"
            other = run_timed(["-m", "benchmarks.finetuning", "plain", data, model, str(seed), str(out)])
            theirs.append(json.loads(out.read_text()))
            ratios.append(mine / other)
            figures = [f"{side['accuracy']:.3f}/{side['f1']:.3f}" for side in (ours[-1], theirs[-1])]
            say(f"seed {seed}: headrace {figures[0]} in {mine:.0f} s", f"{figures[1]} in {other:.0f} s")
    say("planned steps", str(steps), "1377")
    for metric in ("accuracy", "f1"):
        medians = [statistics.median(side[metric] for side in sides) for sides in (ours, theirs)]
        say(f"median {metric}, headrace", f"{medians[0]:.3f}", f"at least the plain loop's {medians[1]:.3f}")
    say("time, headrace / plain loop", spread(ratios), "at most 1.0, aim 0.5")


if __name__ == "__main__":
    if sys.argv[1:2] == ["plain"]:
        plain_loop(sys.argv[2], sys.argv[3], int(sys.argv[4]), sys.argv[5])
    else:
        main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:4]))
