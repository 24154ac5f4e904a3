"""Cut the power of each deed after each of its events: `python -m tests.power_cuts [N [SEED [DEED ...]]]`.

Prints, for each deed, how many images a cut may leave, what came of at most N of them, drawn by the seed; every
promise that would not outlast a cut; and every image, of all, that holds something half written. Ends with 1 if there
is any of these.
"""

import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.power_cuts.images import broken_promises, cut, half_written
from tests.power_cuts.recording import CONTENTS
from tests.power_cuts.trials import NAMED, SAME, TRIALS

DRAWN = 4
"""Images beside the plain ones, of each event."""


def main(arguments: Sequence[str]) -> int:
    most = int(arguments[0]) if arguments else 1000
    seed = int(arguments[1]) if len(arguments) > 1 else 0
    failures = 0
    print(f"{'deed':12} {'events':>7} {'images':>7} {'tried':>7} {SAME:>7} {NAMED:>7} {'wrong':>7} {'seconds':>8}")
    for name in arguments[2:] or TRIALS:
        with TemporaryDirectory() as folder:
            failures += _try(name, Path(folder), most, random.Random(seed))
    return min(failures, 1)


def _try(name: str, common: Path, most: int, draw: random.Random) -> int:
    began, trial = time.monotonic(), TRIALS[name]
    events = trial.record(common)
    broken = broken_promises(events)
    images = list(cut(events, draw, DRAWN))
    tried = images if len(images) <= most else sorted(draw.sample(images, most), key=lambda image: image[0])
    notes = common / "notes" / CONTENTS
    half = [
        f"after {number} {events[number].what}: {each}"
        for number, image in images
        for each in half_written(image, notes)
    ]
    expected = trial.outcome(common / "clean" / "store")
    counts, wrong = Counter[str](), []

    def judge(number: int) -> None:
        verdict = trial.judge(common, tried[number][1], expected)
        counts[verdict if verdict in (SAME, NAMED) else "wrong"] += 1
        if verdict not in (SAME, NAMED):
            wrong.append(f"  after {tried[number][0]} {events[tried[number][0]].what}: {verdict}")

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(judge, range(len(tried))))
    figures = [len(events), len(images), len(tried), counts[SAME], counts[NAMED], counts["wrong"]]
    print(f"{name:12} {' '.join(f'{figure:7}' for figure in figures)} {time.monotonic() - began:8.1f}", flush=True)
    for line in [*(f"  not sure: {each}" for each in broken[:10]), *(f"  {each}" for each in half[:10]), *wrong[:10]]:
        print(line, flush=True)
    return len(wrong) + len(broken) + len(half)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
