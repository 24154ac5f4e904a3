"""The whole proof: `python -m tests.proof [SHARE [PART ...]]`, or `make proof`.

Runs the pipeline under faults that it must survive, one part after another, and prints a table with the number of
faults and of wrong results. A part's output is in build/proof/PART.log. SHARE scales the number of power cuts, seeds,
stops, jobs and kills; the other parts have a fixed length. `machines` needs root. Exits with 1 if any result was wrong
or a part did not finish.

A part that is a program ends with a line of `tell`; tests print such lines, or else the tests are counted.
"""

import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from tests import ROOT

LOGS = ROOT / "build" / "proof"
TOLD = re.compile(r"\bfaults (\d+), wrong (\d+)$", re.MULTILINE)
PASSED, FAILED = re.compile(r"\b(\d+) passed\b"), re.compile(r"\b(\d+) (?:failed|errors?)\b")


class Part(NamedTuple):
    """A part's description, and the arguments of `python -m` for a share of it."""

    what: str
    command: Callable[[float], Sequence[object]]


def _tests(*words: str) -> Callable[[float], Sequence[object]]:
    return lambda share: ["pytest", "-s", *words]  # their output follows the name of their file


def _some(number: int, share: float) -> int:
    return max(1, round(number * share))


PARTS = {
    "power-cuts": Part(
        "images of a store after a power cut", lambda share: ["tests.power_cuts", _some(10_000, share)]
    ),
    "simulation": Part(
        "simulated kills, freezes, wrong clocks, outages", lambda share: ["tests.simulation", _some(10**6, share)]
    ),
    "damage": Part("damaged files", _tests("tests/trainer/store/test_store_fuzz.py", "-m", "long", "-k", "every_case")),
    "kill-points": Part(
        "kills at each write of a training of each kind, disk and S3",
        _tests("tests/trainer/training/test_kill_points.py", "-m", "deep or long", "-k", "every"),
    ),
    "curation": Part(
        "kills at each write of a curation, disk and S3",
        _tests("tests/trainer/curation/test_kill_points.py", "-m", "deep or long", "-k", "every"),
    ),
    "outages": Part("S3 servers stopped for 5 s", lambda share: ["tests.outages", 5, "s3"]),
    "long-outages": Part("S3 servers stopped for 60 s", lambda share: ["tests.outages", 60, "s3"]),
    "full-disks": Part("disks full for 60 s", lambda share: ["tests.outages", 60, "disk"]),
    "stops": Part("stops of three kinds of processes", lambda share: ["tests.stops", _some(134, share)]),  # of each
    "random-jobs": Part("kills of jobs with random settings", lambda share: ["tests.random_jobs", _some(300, share)]),
    "soak": Part("kills of the whole pipeline", lambda share: ["tests.soak", _some(1000, share)]),
    "machines": Part("tests of two machines", lambda share: ["tests.machines"]),
    "cluster": Part("tests of a cluster", _tests("tests/cluster", "-m", "cluster")),
}  # fmt: skip


class Outcome(NamedTuple):
    """A part's result."""

    faults: int
    wrong: int
    ended: bool
    minutes: float


def tell(faults: int, wrong: int) -> None:
    """Print the result of a part or of one of its tests."""
    print(f"faults {faults}, wrong {wrong}", flush=True)


def judge(said: str, status: int, minutes: float) -> Outcome:
    """A part's result, from its output and exit status."""
    told = [(int(faults), int(wrong)) for faults, wrong in TOLD.findall(said)]
    if not told:
        told = [(int(number), 0) for number in PASSED.findall(said)[-1:]]
        told += [(int(number), int(number)) for number in FAILED.findall(said)[-1:]]
    wrong = sum(wrong for _, wrong in told)
    return Outcome(sum(faults for faults, _ in told), wrong, bool(told) and (status == 0 or wrong > 0), minutes)


def prove(name: str, share: float) -> Outcome:
    """Run a part."""
    began, log = time.monotonic(), LOGS / f"{name}.log"
    with open(log, "w", encoding="utf-8") as said:
        command = [sys.executable, "-m", *map(str, PARTS[name].command(share))]
        status = subprocess.run(command, cwd=ROOT, stdout=said, stderr=said, check=False).returncode
    return judge(log.read_text(encoding="utf-8"), status, (time.monotonic() - began) / 60)


def main(share: str = "1", *names: str) -> int:
    """Run the parts and print the table; return 1 if anything was wrong."""
    LOGS.mkdir(parents=True, exist_ok=True)
    print(f"{'':50} {'faults':>12} {'wrong':>6} {'minutes':>8}")
    found = []
    for name in names or PARTS:
        found.append(prove(name, float(share)))
        faults, wrong, ended, minutes = found[-1]
        broken = "" if ended else f"  did not come to its end: see {LOGS / name}.log"
        print(f"{PARTS[name].what:50} {faults:12,} {wrong:6,} {minutes:8.1f}{broken}", flush=True)
    print(f"{'in all':50} {sum(each.faults for each in found):12,} {sum(each.wrong for each in found):6,}")
    return int(any(each.wrong or not each.ended for each in found))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
