"""Verdicts of Gopher's and C4's rules on real texts, against datatrove's filters, with the times of both.

    python -m benchmarks.curation_reference PYTHON

PYTHON is the interpreter of an environment with datatrove; `make test-peers` installs one in build/peers.
"""

import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from benchmarks.measure import say
from tests.peers.datatrove_filters import DEFINITIONS, WAYS
from tests.peers.filters import RULES, batches_of, judge
from tests.real_texts import real_texts
from trainer.curation.measures import MEASURES


def main(python: str) -> None:
    """Compare the verdicts and print the differences."""
    found = dict((text, origin) for origin, text in real_texts())
    texts = list(found)
    size = sum(len(text.encode()) for text in texts) / 1e6
    print(f"curation: Gopher's and C4's rules against datatrove's filters, {len(texts):,} real texts of {size:.1f} MB")
    for origin, count in Counter(found.values()).items():
        say(f"texts, {origin}", f"{count:,}")
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as name:
        verdicts = judge(texts, python, Path(name))
    say("speed, all three filters, one processor", f"{size / seconds(texts):.1f} MB/s")
    say("speed, datatrove's filters, one processor", f"{size / verdicts.seconds:.2f} MB/s")
    for way, description in WAYS.items():
        print(f"datatrove {description}")
        for rules, reasons in verdicts.ours.items():
            compare(rules, reasons, verdicts.theirs[way][rules], list(found.values()), exactly=way == DEFINITIONS)


def seconds(texts: list[str]) -> float:
    """Processor seconds to measure the texts for all rules, with compiled code."""
    started = time.thread_time()
    for batch in batches_of(texts):
        for rule in RULES.values():
            MEASURES[type(rule)](rule)(batch)
    return time.thread_time() - started


def compare(rules: str, ours: list[str], theirs: list[str], origins: list[str], exactly: bool) -> None:
    """Print how many verdicts agree, and the most frequent pairs of reasons that do not."""
    pairs = list(zip(ours, theirs, strict=True))
    say(f"{rules}: dropped here, dropped there", f"{sum(map(bool, ours)):,}, {sum(map(bool, theirs)):,}")
    same = [bool(own) == bool(other) for own, other in pairs]
    say(f"{rules}: same verdict", percent(same), "100.00 %" if exactly else "")
    say(
        f"{rules}: same verdict and reason",
        percent([own == other for own, other in pairs]),
        "100.00 %" if exactly else "",
    )
    if all(same):
        return
    for origin in dict.fromkeys(origins):
        say(
            f"    same verdict, {origin}",
            percent([each for each, of in zip(same, origins, strict=True) if of == origin]),
        )
    for (own, other), count in Counter(pair for pair in pairs if bool(pair[0]) != bool(pair[1])).most_common(6):
        say(f"    {own or 'kept'} here, {other or 'kept'} there", f"{count:,}")


def percent(flags: list[bool]) -> str:
    return f"{100 * sum(flags) / len(flags):.2f} %"


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
