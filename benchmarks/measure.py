"""Measuring and printing for the benchmarks."""

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
    """Print one figure and its target."""
    print(f"  {figure:<64}{value:>18}{f'   (wanted {wanted})' if wanted else ''}", flush=True)


def spread(values: Sequence[float]) -> str:
    """Median, minimum and maximum of some ratios."""
    return f"{statistics.median(values):.2f} [{min(values):.2f}, {max(values):.2f}]"


def run_timed(command: list[str]) -> float:
    """Run this Python with arguments; return the seconds."""
    return run_other([sys.executable, *command])


def run_other(command: list[str]) -> float:
    """Run any command; return the seconds."""
    started = time.perf_counter()
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{ended.stderr[-2000:]}")
    return time.perf_counter() - started


def run_watched(command: list[str]) -> tuple[float, float]:
    """Run this Python with arguments; return the seconds, and the peak memory of it and its children in MiB.

    Measuring the memory takes some time too.
    """
    with highest(lambda: sum(map(_resident, descendants(os.getpid()))), every=0.05) as peak:
        seconds = run_timed(command)
    return seconds, peak[0]


def _resident(pid: int) -> float:
    """Proportional set size in MiB: memory shared by several processes is counted once."""
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) / 1024
    except OSError:
        pass
    return 0.0
