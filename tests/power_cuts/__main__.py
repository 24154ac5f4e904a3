"""Cut the power of each deed after each of its events: `python -m tests.power_cuts [N [SEED [DEED ...]]]`.

For each deed, prints the number of images that a cut may leave, and from how many of N of them, drawn with SEED, it
resumed to the same result. Prints what is wrong in an image, or in a resumed result. Exits with 1 if anything is wrong.
"""

import random
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.power_cuts.cutting import Cut, cut
from tests.power_cuts.trials import NOTES, TRIALS
from tests.proof import tell
from trainer.common.display import suggest_nearest

SHOWN = 20


def main(arguments: Sequence[str]) -> int:
    most = int(arguments[0]) if arguments else 1000
    seed = int(arguments[1]) if len(arguments) > 1 else 0
    names = arguments[2:] or list(TRIALS)
    if unknown := [name for name in names if name not in TRIALS]:
        sys.exit(f"there is no deed {unknown[0]!r}; {suggest_nearest(unknown[0], list(TRIALS))}")
    found = []
    print(f"{'deed':12} {'events':>7} {'images':>7} {'tried':>7} {'same':>7} {'wrong':>7} {'seconds':>8}")
    for name in names:
        with TemporaryDirectory() as folder:
            found.append(_try(name, Path(folder), most, random.Random(seed)))
    wrong = sum(wrong for _, wrong in found)
    tell(sum(images for images, _ in found), wrong)
    return min(wrong, 1)


def _try(name: str, common: Path, most: int, draw: random.Random) -> tuple[int, int]:
    """Cut one deed; return the numbers of images and of problems."""
    began, trial = time.monotonic(), TRIALS[name]
    events = trial.record(common)
    cuts = cut(events, common / NOTES, draw)
    tried = cuts.all if len(cuts.all) <= most else draw.sample(cuts.all, most)
    expected = trial.outcome(common / "clean" / "store")

    def judge(each: Cut) -> str:
        verdict = trial.judge(common, each.image, expected)
        return verdict and f"after {each.after}: {verdict}"

    with ThreadPoolExecutor(2) as pool:
        wrong = list(filter(None, pool.map(judge, tried)))
    figures = [len(events), len(cuts.all), len(tried), len(tried) - len(wrong), len(wrong) + len(cuts.wrong)]
    print(f"{name:12} {' '.join(f'{figure:7}' for figure in figures)} {time.monotonic() - began:8.1f}", flush=True)
    for line in [*cuts.wrong[:SHOWN], *wrong[:SHOWN]]:
        print(f"  {line}", flush=True)
    return len(cuts.all), len(wrong) + len(cuts.wrong)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
