"""Time from the start of the process to the first step: from scratch, and resumed at a late step."""

import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.jobs import job, raw_corpora
from benchmarks.measure import say
from trainer.common.progress import silent
from trainer.config.jobs import PipelineJob
from trainer.kinds.pretraining.kind import prepare
from trainer.records.steps import here

ROUNDS = 3
LATE = 1_000_000


def seconds_to_first_step(bench: PipelineJob, step: int) -> float:
    """Start the trainer, wait for the record of the step after `step`, then kill it."""
    path = Path(bench.store, "job.json")
    path.write_text(bench.model_dump_json())
    metrics = Path(bench.store, "runs", "bench", "metrics.jsonl")
    started = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-m", "trainer", str(path)], stderr=subprocess.DEVNULL)
    try:
        while process.poll() is None:
            tail = (
                metrics.read_bytes()[-1000:].decode().rpartition("\n")[0].splitlines()[1:] if metrics.exists() else []
            )
            if any(json.loads(line)["step"] > step for line in tail if '"kind": "train"' in line):
                seconds = time.perf_counter() - started
                while not (metrics.parent / "checkpoint-last").exists() and process.poll() is None:
                    time.sleep(0.01)
                return seconds
            time.sleep(0.01)
    finally:
        process.kill()
        process.wait()
    raise RuntimeError("the trainer ended before its first step")


def move_checkpoint(run: Path, step: int) -> None:
    """Turn the run's checkpoint into one of a late step; only the position differs, because the order is arithmetic."""
    from trainer.records.sealed import seal_line, write_pointer
    from trainer.records.shapes import folder_name
    from trainer.store.manifest import digest_file, make_manifest, seal
    from trainer.store.storage import Store

    (folder,) = (run / "checkpoints").iterdir()
    late = run / folder_name(step)
    folder.rename(late)
    state = late / "state.json"
    state.write_text(re.sub(r'"(step|attempts|last_epoch|_step_count)": \d+', rf'"\1": {step}', state.read_text()))
    manifest = json.loads((late / "manifest.json").read_text())
    files = [digest_file(path) for path in late.iterdir() if path.name != "manifest.json"]
    details = {**manifest["details"], "step": step}
    made = make_manifest(manifest["kind"], manifest["fingerprint"], files, details)
    (late / "manifest.json").write_text(json.dumps(seal(made.model_dump())))
    key = f"runs/{run.name}"
    lines = (
        seal_line(f"{key}/metrics.jsonl", n, {"kind": "train", "step": 10 * n, "loss": 3.0, "learning_rate": 1e-4})
        for n in range(1, step // 10 + 1)
    )
    (run / "metrics.jsonl").write_bytes(b"".join(lines))
    (run / "checkpoint-best").unlink(missing_ok=True)
    write_pointer(Store(str(run.parents[1])), f"{key}/checkpoint-last", step, None)


def main() -> None:
    """Measure both alternately."""
    print("restart: start of the process to the first step", flush=True)
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as name:
        raw_corpora(Path(name, "raw"))
        bench = job(Path(name), max_steps=2 * LATE, log_every=1, save_every=1).model_copy(update={"run": "bench"})
        prepare(bench.preparation(), here(silent()))
        run = Path(bench.store, "runs", "bench")
        fresh, resumed = [], []
        for _ in range(ROUNDS):
            subprocess.run(["rm", "-rf", str(run)], check=True)
            fresh.append(seconds_to_first_step(bench, 0))
            keep_one(run)
            move_checkpoint(run, LATE)
            resumed.append(seconds_to_first_step(bench, LATE))
        say("from scratch", f"{statistics.median(fresh):.2f} s")
        say(f"resumed at step {LATE:,}", f"{statistics.median(resumed):.2f} s")
        say(
            "resumed / from scratch",
            f"{statistics.median(r / f for f, r in zip(fresh, resumed, strict=True)):.2f}",
            "at most 1.1",
        )


def keep_one(run: Path) -> None:
    """Leave one committed checkpoint in the run."""
    committed = [folder for folder in (run / "checkpoints").iterdir() if (folder / "manifest.json").exists()]
    for folder in (run / "checkpoints").iterdir():
        if folder != committed[0]:
            subprocess.run(["rm", "-rf", str(folder)], check=True)


if __name__ == "__main__":
    main()
