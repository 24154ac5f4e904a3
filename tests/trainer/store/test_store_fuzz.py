"""Every file of a store that is read back, damaged: repaired to the same bits, refused with one message, or told of by
name.

What nothing can tell is shown as it is; the judge says what counts as which. Never another outcome without a word, and
never a traceback.
"""

import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.proof import tell
from tests.support import cpu_runtime
from tests.trainer.fuzz.cases import Case, make_cases, sample
from tests.trainer.fuzz.judge import Judge, Result, table
from tests.trainer.fuzz.world import World, build, in_process

FEWEST, SAMPLED, FEWEST_OF_SAMPLE = 2500, 115, 100
WRONG = ("silent", "traceback")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A store with everything in it; not to be written to."""
    cpu_runtime()
    with in_process():
        yield build(tmp_path_factory.mktemp("fuzz"))


def run(world: World, cases: list[Case], folder: Path) -> list[Result]:
    """Try the cases; prints what must not be as it comes, and the table."""
    judge, began, results = Judge(world, folder), time.monotonic(), list[Result]()
    for case in cases:
        if (result := judge.judge(case)) is not None:
            results.append(result)
            if result.verdict in (*WRONG, *os.environ.get("FUZZ_PRINT", "").split()):  # other verdicts, to look at
                print(f"\n{describe(result)}\n{result.said[:3000]}", flush=True)
    tell(len(results), len(wrong(results)))
    print(f"\n{len(results)} cases in {time.monotonic() - began:.0f} s\n{table(results)}", flush=True)
    return results


def wrong(results: list[Result]) -> list[str]:
    return [describe(each) for each in results if each.verdict in WRONG]


def describe(result: Result) -> str:
    """Which case it is, and what became of it."""
    harms = " and ".join(f"{harm.damage} of {harm.key}" for harm in result.case.harms)
    return f"{result.verdict}: case {result.case.number}, {harms}, read by {result.reader}"


@pytest.mark.deep
def test_a_damaged_file_is_repaired_or_refused_in_a_sample_of_cases(world: World, tmp_path: Path) -> None:
    results = run(world, sample(make_cases(world.store), SAMPLED), tmp_path)
    assert len(results) >= FEWEST_OF_SAMPLE
    assert wrong(results) == []


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_a_damaged_file_is_repaired_or_refused_in_every_case(world: World, tmp_path: Path) -> None:
    cases = make_cases(world.store)
    only = os.environ.get("FUZZ_KIND", "")  # a regular expression, to look at some kinds of files alone
    results = run(world, [case for case in cases if re.search(only, case.kind)], tmp_path)
    assert only or len(results) >= FEWEST
    assert wrong(results) == []
