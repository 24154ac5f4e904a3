"""Kill the whole pipeline repeatedly: `python -m tests.soak [N [SEED]]`, or `make soak N=200`.

Runs the flow `data-to-model` with small sizes against a real Prefect server. Ends it with SIGKILL or SIGTERM at random
times, N times in total and at most four times per run. Compares each finished run with an undisturbed one: tokenizer,
shards, checkpoints, final model, results, and the curve of all steps. Prints kills, restarts, mismatches (must be 0),
leftovers (must be 0) and the most steps lost by a kill.
"""

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests import ROOT
from tests.flows.serving import Serving
from tests.processes import alive, descendants
from tests.proof import tell
from tests.support import (
    curve,
    held_out_losses,
    published,
    small_values,
    steps_recorded,
    write_config,
    write_corpora,
)
from trainer.common.errors import EXIT_PREEMPTED
from trainer.store.storage import Store

RUN = Path("runs", "soak")

SETTINGS: dict[str, Any] = {
    "run": RUN.name,
    "training__max_steps": 900,
    "training__save_every": 20,
    "training__evaluate_every": 150,
}

KILLS_A_RUN = 4

GONE_AFTER = 5.0
"""Time limit for all processes of a killed flow to end."""


@dataclass
class Figures:
    """Counts so far."""

    kills: int = 0
    restarts: int = 0
    finished: int = 0
    mismatches: int = 0
    leftovers: int = 0
    lost: int = 0

    def __str__(self) -> str:
        return (
            f"kills {self.kills}, restarts {self.restarts}, runs finished {self.finished}, mismatches "
            f"{self.mismatches}, leftovers {self.leftovers}, most steps lost {self.lost}"
        )


class Soak:
    """A folder with raw text and stores, on which the flow runs."""

    def __init__(self, folder: Path, env: dict[str, str], seed: int) -> None:
        self._folder, self._env, self._random = folder, env, random.Random(seed)
        self._raw = write_corpora(folder / "raw")
        self.figures = Figures()
        began = time.monotonic()
        if self._start(folder / "clean").wait() != 0:
            raise RuntimeError((folder / "said").read_text()[-3000:])
        self.length = time.monotonic() - began
        self._expected = outcome(folder / "clean")

    def run(self, kills: int) -> None:
        """One run from an empty store to its end, killed at most a number of times before."""
        now, store = self.figures, self._folder / f"store-{self.figures.finished}"
        began, whole = time.monotonic(), True
        while True:
            flow = self._start(store)
            killed = kills > 0 and self._kill(flow, store)
            kills -= killed
            status = flow.wait()
            if status == 0:
                break
            if not killed or status not in (-signal.SIGKILL, -signal.SIGTERM, EXIT_PREEMPTED):
                raise RuntimeError(f"ended with {status}:\n{(self._folder / 'said').read_text()[-5000:]}")
            now.restarts += 1
            whole = False
        if whole:  # the duration changes with other work on the machine
            self.length = time.monotonic() - began
        wrong = differing(outcome(store), self._expected)
        now.mismatches += bool(wrong)
        now.leftovers += len(list(store.glob(".staging/*")))
        now.finished += 1
        print(now, *wrong, sep="\n  ", flush=True)

    def _kill(self, flow: subprocess.Popen[bytes], store: Path) -> bool:
        """Kill the flow's process group at a random time; return whether it was still running."""
        with suppress(subprocess.TimeoutExpired):
            flow.wait(self._random.uniform(0.5, self.length))
            return False
        signum = self._random.choice([signal.SIGKILL, signal.SIGTERM])
        recorded, family = steps_recorded(store), descendants(flow.pid)
        os.killpg(flow.pid, signum)
        flow.wait()
        end = time.monotonic() + GONE_AFTER
        while (left := [pid for pid in family if alive(pid)]) and time.monotonic() < end:
            time.sleep(0.01)
        saved = committed(store)
        self.figures.kills += 1
        self.figures.leftovers += len(left)
        self.figures.lost = max(self.figures.lost, recorded - saved)
        print(f"  {signum.name} at step {recorded}, {saved} saved", flush=True)
        return True

    def _start(self, store: Path) -> subprocess.Popen[bytes]:
        """Start the flow in a new process group, like a worker."""
        config = write_config(self._folder / "job.yaml", small_values(self._raw, store, **SETTINGS))
        command = [sys.executable, "-m", "flows.data_to_model", str(config)]
        with open(self._folder / "said", "ab") as out:
            env = {**os.environ, **self._env}
            return subprocess.Popen(command, cwd=ROOT, env=env, stdout=out, stderr=out, start_new_session=True)


def committed(store: Path) -> int:
    """The step of the newest checkpoint; 0 before the first."""
    pointer = store / RUN / "checkpoint-last"
    return int(json.loads(pointer.read_text())["step"]) if pointer.exists() else 0


def outcome(url: str | Path) -> dict[str, Any]:
    """The contents of a store that must not depend on kills."""
    store = Store(str(url))
    with tempfile.TemporaryDirectory(prefix="headrace-copy-") as name:
        folder = Path(url) if store.local is not None else _copied(store, Path(name))
        contents = published(folder, store.url)
        return {**contents, "curve": curve(folder), "held-out losses": held_out_losses(folder)}


def differing(found: Mapping[str, Any], expected: Mapping[str, Any]) -> list[str]:
    """The names of what differs between two outcomes."""
    return sorted(name for name in {*found, *expected} if found.get(name) != expected.get(name))


def _copied(store: Store, folder: Path) -> Path:
    for file in store.walk():
        (folder / file.key).parent.mkdir(parents=True, exist_ok=True)
        (folder / file.key).write_bytes(store.read_bytes(file.key))
    return folder


def main(kills: int = 200, seed: int = 0) -> int:
    """Run the soak test and print the figures; return 1 if anything went wrong."""
    with tempfile.TemporaryDirectory(prefix="headrace-soak-") as name:
        server = Serving(Path(name, "prefect"))
        try:
            soak = Soak(Path(name), server.env, seed)
            print(f"one run takes {soak.length:.0f} s; seed {seed}", flush=True)
            while soak.figures.kills < kills:
                soak.run(min(KILLS_A_RUN, kills - soak.figures.kills))
        finally:
            server.kill_server()
    print(soak.figures)
    wrong = soak.figures.mismatches + soak.figures.leftovers
    tell(soak.figures.kills, wrong)
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
