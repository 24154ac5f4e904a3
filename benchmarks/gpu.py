"""Training on GPUs, without Prefect: `python -m benchmarks.gpu`.

In fp32, bf16 and fp16, on one GPU and on all: the loss curve against fp32 on one GPU, tokens per second and MFU. Also
compares a run that was stopped and resumed with an uninterrupted one.
"""

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.jobs import job, raw_corpora
from benchmarks.measure import say

MODEL = {"model_type": "gpt2", "n_layer": 12, "n_head": 12, "n_embd": 768, "n_positions": 1024, "vocab_size": 8192}
TRAINING = {
    "max_steps": 120,
    "context": 1024,
    "global_batch": 32,
    "warmup_steps": 20,
    "log_every": 10,
    "save_every": 40,
}


def run(folder: Path, name: str, ranks: int, stop_after: int | None = None, **training: Any) -> list[dict[str, Any]]:
    """Train to the end, or stop with SIGTERM after a number of recorded steps; return the records."""
    config = folder / f"{name}.json"
    values = job(folder, MODEL, **{**TRAINING, **training}).model_dump(mode="json")
    config.write_text(json.dumps({**values, "run": name}))
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        f"--nproc-per-node={ranks}",
        "-m",
        "trainer",
    ]
    records = folder / "store" / "runs" / name / "metrics.jsonl"
    with open(folder / f"{name}.log", "w") as said:
        process = subprocess.Popen([*command, str(config)], stdout=said, stderr=said)
        while process.poll() is None:
            time.sleep(0.2)
            if stop_after and records.exists() and _steps(records) >= stop_after:
                process.send_signal(signal.SIGTERM)
                stop_after = None
    if process.returncode and "asked to stop" not in (folder / f"{name}.log").read_text():
        raise RuntimeError((folder / f"{name}.log").read_text()[-3000:])
    return [record for record in _read(records) if record["kind"] == "train"]


def main() -> int:
    """Print the figures; return 1 if there is no GPU."""
    gpus = torch.cuda.device_count()
    if not gpus:
        print("this machine has no GPU", file=sys.stderr)
        return 1
    print(f"gpu: {gpus} x {torch.cuda.get_device_name(0)}, torch {torch.__version__}")
    os.environ["OMP_NUM_THREADS"] = "4"
    with tempfile.TemporaryDirectory(prefix="headrace-gpu-") as name:
        folder = Path(name)
        raw_corpora(folder / "raw")
        reference = [record["loss"] for record in run(folder, "fp32-1", 1)]
        for precision in ("fp32", "bf16", "fp16"):
            for ranks in sorted({1, gpus}):
                for compiled in (False, True):
                    title = f"{precision}-{ranks}{'-compiled' if compiled else ''}"
                    records = run(folder, title, ranks, precision=precision, compile=compiled)
                    worst = max(abs(r["loss"] - loss) for r, loss in zip(records, reference, strict=True))
                    say(f"{title}: largest difference to fp32-1's loss", f"{worst:.4f}")
                    say(f"{title}: tokens/s", f"{statistics.median(r['tokens_per_second'] for r in records[3:]):,.0f}")
                    say(f"{title}: MFU", f"{statistics.median(r['mfu'] for r in records[3:]):.3f}")
        whole = run(folder, "whole", 1, precision="bf16")
        run(folder, "stopped", 1, stop_after=60, precision="bf16")
        continued = run(folder, "stopped", 1, precision="bf16")
        say(
            "stopped and resumed: same losses",
            str([r["loss"] for r in whole] == [r["loss"] for r in continued]),
            "True",
        )
    return 0


def _read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().split("\n")[:-1] if line]


def _steps(path: Path) -> int:
    return max((record["step"] for record in _read(path)), default=0)


if __name__ == "__main__":
    sys.exit(main())
