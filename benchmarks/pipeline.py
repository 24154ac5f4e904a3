"""Cost of the pipeline's training task: its tokens per second against the bare trainer's on the same job."""

import statistics
import tempfile
from pathlib import Path

from benchmarks.jobs import job, raw_corpora, run_job
from benchmarks.measure import say, spread
from trainer.common.progress import silent
from trainer.kinds.pretraining.kind import prepare
from trainer.records.steps import here

PAIRS = 3
STEPS = 60


def tokens_per_second(folder: Path, module: str, run: str) -> float:
    """Train with a module's command line; return the median rate of its records except the first."""
    found = run_job(job(folder, max_steps=STEPS, log_every=5), module, run)
    records = [record for record in found if record["kind"] == "train"]
    return statistics.median(float(record["tokens_per_second"]) for record in records[1:])


def main() -> None:
    """Measure both alternately."""
    print("pipeline: the training task of the flow, against the bare trainer", flush=True)
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as name:
        folder = Path(name)
        raw_corpora(folder / "raw")
        prepare(job(folder).preparation(), here(silent()))
        ratios = [
            tokens_per_second(folder, "flows.train_model", f"flow-{pair}")
            / tokens_per_second(folder, "trainer", f"bare-{pair}")
            for pair in range(PAIRS)
        ]
        say("tokens/s, flow / bare", spread(ratios), "at least 0.98")


if __name__ == "__main__":
    main()
