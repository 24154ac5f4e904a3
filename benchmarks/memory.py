"""Peak memory of training in each phase, against the preflight's estimate.

Files mark the ends of the phases: training ends when a save begins, the save ends with its commit, and the final
evaluation ends with its record.
"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

from benchmarks.jobs import job, raw_corpora
from benchmarks.measure import say
from trainer.common.progress import silent
from trainer.config.jobs import PipelineJob
from trainer.kinds.pretraining.kind import prepare
from trainer.records.steps import here

SHAPES = {"5M": (4, 256), "91M": (12, 768), "120M": (16, 768)}
"""Layers and channels."""

STEPS, SAVED = 6, 3
FIGURE = """
import sys
from trainer.kinds.kind import load_training_job
from trainer.kinds.pretraining.preflight import preflight
from trainer.common.progress import silent
print(preflight(load_training_job(sys.argv[1]), silent()).about_memory_bytes)
"""


def phase_of(run: Path) -> str:
    """The present phase of a run."""
    if (run / "eval.json").exists():
        return "report"
    if (run / "final" / "manifest.json").exists():
        return "evaluation"
    if (run / f"checkpoints/step-{STEPS:08d}/manifest.json").exists():
        return "final model"
    if (run / f"checkpoints/step-{SAVED:08d}/manifest.json").exists():
        return "training on"
    return "save" if list(run.parent.parent.glob(".staging/*/model.safetensors")) else "training"


def peaks(bench: PipelineJob, config: Path) -> dict[str, float]:
    """The peak resident memory of the process in each phase, in bytes."""
    run = Path(bench.store) / str(bench.run)
    found: dict[str, float] = {}
    with subprocess.Popen([sys.executable, "-m", "trainer", str(config)], stdout=subprocess.DEVNULL) as process:
        watched = psutil.Process(process.pid)
        while process.poll() is None:
            try:
                size, phase = float(watched.memory_info().rss), phase_of(run)
            except psutil.Error:
                break
            found[phase] = max(found.get(phase, 0.0), size)
            time.sleep(0.01)
    if process.returncode:
        raise RuntimeError(f"{config} ended with {process.returncode}")
    return found


def main() -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as name:
        folder = Path(name)
        raw_corpora(folder / "raw")
        for size, (layers, channels) in SHAPES.items():
            model: dict[str, Any] = {
                "model_type": "gpt2",
                "n_layer": layers,
                "n_head": channels // 64,
                "n_embd": channels,
            }
            bench = job(
                folder, {**model, "n_positions": 256, "vocab_size": 8192}, max_steps=STEPS, save_every=SAVED,
                global_batch=4,
                micro_batch=4, log_every=1, warmup_steps=1,
            ).model_copy(update={"run": size})  # fmt: skip
            prepare(bench.preparation(), here(silent()))
            config = folder / f"{size}.json"
            config.write_text(bench.model_dump_json())
            figure = float(subprocess.check_output([sys.executable, "-c", FIGURE, config], text=True).split()[-1])
            found = peaks(bench.model_copy(update={"run": f"runs/{size}"}), config)
            say(f"{size}: preflight's estimate", f"{figure / 1e6:,.0f} MB")
            for phase, peak in found.items():
                say(f"{size}: {phase}", f"{peak / 1e6:,.0f} MB", f"{peak / figure:.2f} of the estimate")
            say(f"{size}: peak / estimate", f"{max(found.values()) / figure:.2f}", "0.9 to 1.1")


if __name__ == "__main__":
    main()
