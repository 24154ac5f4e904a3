"""How the benchmarks measure and print."""

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.processes import descendants, highest

PAGE_KIB = 4


def say(figure: str, value: str, wanted: str = "") -> None:
    """Print one figure and what it should be."""
    print(f"  {figure:<64}{value:>18}{f'   (wanted {wanted})' if wanted else ''}", flush=True)


def spread(values: Sequence[float]) -> str:
    """Median, least and greatest of some ratios."""
    return f"{statistics.median(values):.2f} [{min(values):.2f}, {max(values):.2f}]"


def run_timed(command: list[str]) -> float:
    """Run a command of this Python; return its seconds."""
    return run_other([sys.executable, *command])


def run_other(command: list[str]) -> float:
    """Run any command; return its seconds."""
    started = time.perf_counter()
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{ended.stderr[-2000:]}")
    return time.perf_counter() - started


def run_watched(command: list[str]) -> tuple[float, float]:
    """The same, with the peak resident memory of it and its children together, in MiB; looking at that takes time,
    too.
    """
    with highest(lambda: sum(map(_resident, descendants(os.getpid()))), every=0.05) as peak:
        seconds = run_timed(command)
    return seconds, peak[0]


def _resident(pid: int) -> float:
    """Proportional set size in MiB: memory shared by processes is counted once among them."""
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) / 1024
    except OSError:
        pass
    return 0.0
