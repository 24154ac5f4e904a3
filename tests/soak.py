"""Kill the whole pipeline again and again: `python -m tests.soak [N]`, or `make soak N=200`.

Runs the flow `data-to-model` with small sizes on a Prefect server of its own, ends it with SIGKILL or SIGTERM at random times,
each run at most three times, until N times in all, and compares every finished run with one that was left alone. Prints kills,
restarts, mismatches (must be 0), leftovers (must be 0) and the most steps that a kill has cost.
"""

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.processes import descendants
from tests.support import ROOT, final_bytes, small_values, steps_recorded, write_config, write_corpora

SETTINGS: dict[str, Any] = {
    "run": "soak",
    "training__max_steps": 300,
    "training__save_every": 20,
    "training__evaluate_every": 50,
}

KILLS_A_RUN = 3


def start(config: Path, said: Path) -> subprocess.Popen[bytes]:
    """Start the flow in a process group of its own, as a worker does."""
    with open(said, "ab") as out:
        command = [sys.executable, "-m", "flows.data_to_model", str(config)]
        return subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=out, start_new_session=True)


def main(kills: int) -> int:
    """Soak, and print the figures. Returns 1 if anything went wrong."""
    rng, done, restarts, mismatches, leftovers, lost, number = random.Random(0), 0, 0, 0, 0, 0, 0
    with tempfile.TemporaryDirectory(prefix="headrace-soak-") as name:
        folder = Path(name)
        os.environ["PREFECT_HOME"] = str(folder / "prefect")
        raw = write_corpora(folder / "raw")
        clean = folder / "clean"
        config = write_config(folder / "clean.yaml", small_values(raw, clean, **SETTINGS))
        began = time.monotonic()
        assert start(config, folder / "said").wait() == 0, (folder / "said").read_text()[-3000:]
        length, expected = time.monotonic() - began, final_bytes(clean)
        print(f"one run takes {length:.0f} s", flush=True)
        while done < kills:
            number += 1
            store, status, until = folder / f"store-{number}", -1, min(kills, done + KILLS_A_RUN)
            config = write_config(folder / "job.yaml", small_values(raw, store, **SETTINGS))
            while status != 0:
                process = start(config, folder / "said")
                if done < until:
                    time.sleep(rng.uniform(1, length))
                before = steps_recorded(store)
                children = descendants(process.pid)
                if done < until and process.poll() is None:
                    signum = rng.choice([signal.SIGKILL, signal.SIGTERM])
                    os.killpg(process.pid, signum)
                    done += 1
                status = process.wait()
                if status != 0:
                    restarts += 1
                    committed = store / "runs" / "soak" / "checkpoint-last"
                    saved = json.loads(committed.read_text())["step"] if committed.exists() else 0
                    lost = max(lost, before - saved)
                    time.sleep(1)
                    leftovers += sum(Path(f"/proc/{pid}").exists() for pid in children)
                    print(f"{done} kills, run {number} is at step {saved}", flush=True)
            mismatches += final_bytes(store) != expected
            leftovers += len(list(store.glob(".staging/*")))
            print(f"{done} kills, {restarts} restarts, {number} runs finished, {mismatches} mismatches", flush=True)
    print(f"kills {done}, restarts {restarts}, mismatches {mismatches}, leftovers {leftovers}, most steps lost {lost}")
    return int(bool(mismatches or leftovers))


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 200))
