"""What the pipeline's training task costs: its tokens a second against the bare trainer's, on the same job."""

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.jobs import job, raw_corpora
from benchmarks.measure import say, spread
from trainer.preparation import prepare
from trainer.progress import silent

PAIRS = 3
STEPS = 60


def tokens_per_second(folder: Path, module: str, run: str) -> float:
    """Train through a module's command line; returns the median rate of its records, the first left out."""
    path = folder / f"{run}.json"
    bench = job(folder, max_steps=STEPS, log_every=5).model_copy(update={"run": run})
    path.write_text(bench.model_dump_json())
    subprocess.run([sys.executable, "-m", module, str(path)], check=True, capture_output=True)
    lines = Path(bench.store, "runs", run, "metrics.jsonl").read_text().splitlines()
    records = [record for record in map(json.loads, lines) if record["kind"] == "train"]
    return statistics.median(record["tokens_per_second"] for record in records[1:])


def main() -> None:
    """Measure both in turn."""
    print("pipeline: the training task of the flow, against the bare trainer", flush=True)
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as name:
        folder = Path(name)
        raw_corpora(folder / "raw")
        prepare(job(folder).preparation(), silent())
        ratios = [
            tokens_per_second(folder, "flows.train_model", f"flow-{pair}")
            / tokens_per_second(folder, "trainer", f"bare-{pair}")
            for pair in range(PAIRS)
        ]
        say("tokens/s, flow / bare", spread(ratios), "at least 0.98")


if __name__ == "__main__":
    main()
