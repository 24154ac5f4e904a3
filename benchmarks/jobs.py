"""The model and the data that the benchmarks use."""

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from samples.corpora import main as write_corpora
from trainer.config.jobs import PipelineJob
from trainer.config.runs import RunJob
from trainer.store.storage import Store
from trainer.training.metrics_reader import read_records

GPT2 = {"model_type": "gpt2", "n_layer": 4, "n_head": 4, "n_embd": 256, "n_positions": 256, "vocab_size": 8192}
"""5.3 million parameters, with GPT-2's default dropout."""


def raw_corpora(folder: Path) -> Path:
    """Write the sample corpora; return their folder."""
    write_corpora([str(folder)])
    return folder


def job(folder: Path, model: dict[str, Any] = GPT2, **training: Any) -> PipelineJob:
    """A job on the sample corpora in a folder, with its store there."""
    raw = folder / "raw"
    defaults = {"max_steps": 100, "context": 256, "global_batch": 8, "warmup_steps": 10}
    return PipelineJob.model_validate(
        {
            "store": str(folder / "store"),
            "name": "bench",
            "data": {
                "corpora": [
                    {"name": "code", "paths": [f"{raw}/code/**/*.py"], "format": "source"},
                    {"name": "docstrings", "paths": [f"{raw}/docstrings/*.jsonl"], "format": "jsonl"},
                ],
                "tokenizer": {"vocab_size": 8192},
                "shards": {"num_shards": 4, "piece_bytes": 65536},
                "validation_fraction": 0.02,
            },
            "model": {"config": model},
            "training": {**defaults, **training},
            "evaluation": {"during_training": 4},
        }
    )


def run_job(bench: RunJob, module: str, run: str) -> list[dict[str, Any]]:
    """Run a job under a name with a module's command line; return the run's records."""
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        path = Path(folder, "job.json")
        path.write_text(bench.model_copy(update={"run": run}).model_dump_json())
        subprocess.run([sys.executable, "-m", module, str(path)], check=True, capture_output=True)
    return list(read_records(Store(bench.store), f"runs/{run}"))
