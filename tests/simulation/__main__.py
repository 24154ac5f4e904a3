"""Try N seeds from FIRST on, on all cores: `python -m tests.simulation [N [FIRST [BUG]]]`.

Prints the violations of each seed, and the totals at the end; exits with 1 if there was a violation. With a BUG of
`planted`, it stops at the first seed that finds it.
"""

import gc
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial

from tests.proof import tell
from tests.simulation.trial import FAULTS, FLIP, Outcome, simulate

TOLD_EVERY = 10_000


def main(arguments: Sequence[str]) -> int:
    seeds = int(arguments[0]) if arguments else 1000
    first = int(arguments[1]) if len(arguments) > 1 else 0
    bug = arguments[2] if len(arguments) > 2 else ""
    began, seen, violated, steps = time.monotonic(), Counter[str](), 0, 0
    gc.freeze()  # exclude loaded objects from garbage collection, which would scan them repeatedly in every process
    with multiprocessing.Pool(len(os.sched_getaffinity(0))) as pool:
        outcomes: Iterable[Outcome] = pool.imap_unordered(partial(simulate, bug=bug), range(first, first + seeds), 8)
        for number, outcome in enumerate(outcomes, start=1):
            seen += outcome.seen
            steps += outcome.steps
            if outcome.violations:
                violated += 1
                print(f"seed {outcome.seed}: {'; '.join(outcome.violations[:5])}", flush=True)
                if bug:
                    pool.terminate()
                    break
            if number % TOLD_EVERY == 0:
                print(f"{number:,} seeds, {violated} violated, {time.monotonic() - began:,.0f} s", flush=True)
    rate = number / (time.monotonic() - began)
    print(f"{number:,} seeds, {steps:,} requests, {violated} violated, {rate:.1f} seeds/s")
    print(", ".join(f"{what} {count:,}" for what, count in sorted(seen.items(), key=lambda each: (-each[1], each[0]))))
    tell(sum(seen[fault] for fault in [*FAULTS, FLIP]), violated)
    return min(violated, 1)


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":  # makes the order of sets of names reproducible
        os.execve(
            sys.executable,
            [sys.executable, "-m", "tests.simulation", *sys.argv[1:]],
            {**os.environ, "PYTHONHASHSEED": "0"},
        )
    sys.exit(main(sys.argv[1:]))
