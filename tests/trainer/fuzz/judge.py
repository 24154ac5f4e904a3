"""A damaged file, all that reads it, and what is to be said of what they did."""

import logging
import re
import shutil
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel

from tests.trainer.fuzz.cases import Case
from tests.trainer.fuzz.damage import DAMAGES, LEFT_AS_POSSIBLE
from tests.trainer.fuzz.readers import READERS, SHOWING, TELLING
from tests.trainer.fuzz.world import World, copy
from trainer.common.errors import PipelineError

VERDICTS = ("repaired", "refused", "told", "shown", "silent", "traceback")
"""What a reader did, the best first; the worst of a case's readers counts. `silent` and `traceback` must not be.

    repaired    its outcome is the one of the undamaged store
    refused     it ended with one message, on one line, which names the file, its folder or its run
    told        its outcome is another one, and a warning names the file or its folder; or the reader is one that people
                read, and a line of what it says names the file or its folder and says what is the matter
    shown       its outcome is another one, and it is one that hands on what is recorded, to people or to the gate:
                a file was deleted, or sealed again, by a bug or by hand, with values that can be, and nothing tells
                that there were others
    silent      its outcome is another one, and none of these holds
    traceback   it ended with anything else
"""


class Result(NamedTuple):
    """What became of a case, and of which reader."""

    case: Case
    verdict: str
    reader: str
    said: str


class Heard(logging.Handler):
    """Keeps the warnings of a case."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


class Judge:
    """Runs cases against a world; what readers make of it undamaged is found out once each."""

    def __init__(self, world: World, folder: Path) -> None:
        self._world, self._folder = world, folder
        self._expected: dict[tuple[str, ...], dict[str, Any]] = {}

    def judge(self, case: Case) -> Result | None:
        """None if there was nothing to damage."""
        names = case.readers.split()
        expected = self._undamaged(tuple(names))
        place = self._folder / f"case-{case.number:05d}"
        damaged = copy(self._world, place)
        try:
            if not all(DAMAGES[harm.damage](place, harm.key, case.draw(harm)) for harm in case.harms):
                return None
            results = [self._read(case, name, damaged, expected[name]) for name in names]
            return max(results, key=lambda result: VERDICTS.index(result.verdict))
        finally:
            for left in self._folder.glob(f"{place.name}*"):
                shutil.rmtree(left) if left.is_dir() else left.unlink()

    def _undamaged(self, names: tuple[str, ...]) -> dict[str, Any]:
        if names not in self._expected:
            place = self._folder / f"undamaged-{len(self._expected)}"
            world = copy(self._world, place)
            self._expected[names] = {name: _plain(READERS[name](world), world) for name in names}
            shutil.rmtree(place)
        return self._expected[names]

    def _read(self, case: Case, name: str, world: World, expected: str) -> Result:
        with _listening() as heard:
            try:
                found = _plain(READERS[name](world), world)
            except PipelineError as error:
                return Result(case, _judge_refusal(case, str(error)), name, str(error))
            except Exception as error:
                return Result(case, "traceback", name, "".join(traceback.format_exception(error)[-4:]))
        expected, found = (_without_own_digests(case, outcome) for outcome in (expected, found))
        if found == expected:
            return Result(case, "repaired", name, "")
        news = [*heard.messages, *(_news(expected, found) if name in TELLING else [])]
        told = any(_names(case, message) for message in heard.messages) or any(_tells(case, line) for line in news)
        shown = name in SHOWING and any(harm.damage in LEFT_AS_POSSIBLE for harm in case.harms)
        verdict = "told" if told else "shown" if shown else "silent"
        return Result(case, verdict, name, f"{news} -- {_difference(expected, found)}")


def table(results: Sequence[Result]) -> str:
    """Counts by kind of file and verdict."""
    counts = Counter((result.case.kind, result.verdict) for result in results)
    kinds = list(dict.fromkeys(result.case.kind for result in results))
    rows = [["file", "cases", *VERDICTS]]
    for kind in [*kinds, "all"]:
        each = [
            sum(n for (name, verdict), n in counts.items() if kind in (name, "all") and verdict == v) for v in VERDICTS
        ]
        rows.append([kind, str(sum(each)), *map(str, each)])
    return "\n".join(f"{row[0]:<42}" + "".join(f"{cell:>10}" for cell in row[1:]) for row in rows)


def _judge_refusal(case: Case, message: str) -> str:
    runs = ["/".join(harm.key.split("/")[:2]) for harm in case.harms]
    named = _names(case, message) or any(run in message for run in runs)
    return "refused" if named and "\n" not in message else "silent"


def _names(case: Case, message: str) -> bool:
    """Whether a message names one of the files, its digest or, unless that is all of a run, the folder that it is
    in.
    """
    for folder, _, name in (harm.key.rpartition("/") for harm in case.harms):
        digest = f"{name.removesuffix('.json')}_sha256"
        if name in message or digest in message or (folder in message and not re.fullmatch("runs/[^/]+", folder)):
            return True
    return False


def _tells(case: Case, line: str) -> bool:
    words = r"damaged|unreadable|changed|missing|gone|left out|cannot be|not known|no checkpoint|refused|made|continued"
    return _names(case, line) and re.search(words, line) is not None


def _plain(outcome: Any, world: World) -> str:
    """An outcome as lines: every text and number of it, and what they are called."""
    return "\n".join(_lines(outcome)).replace(str(world.store), "STORE")


def _lines(outcome: Any) -> Iterator[str]:
    if isinstance(outcome, BaseModel):
        outcome = dict(outcome)
    if isinstance(outcome, dict):
        for key in sorted(outcome, key=str):  # files do not keep their order
            yield f"{key}:"
            yield from _lines(outcome[key])
    elif isinstance(outcome, list | tuple):
        yield f"{len(outcome)} of"
        for each in outcome:
            yield from _lines(each)
    else:
        yield from str(outcome).splitlines() or [""]


def _without_own_digests(case: Case, outcome: str) -> str:
    """Of files whose every checksum was made right again: that they are other files is no news."""
    for harm in case.harms:
        if harm.damage == "reseal":
            outcome = re.sub(
                rf"^{re.escape(harm.key.rpartition('/')[2])}:\n[0-9a-f]{{64}}$", "", outcome, flags=re.MULTILINE
            )
    return outcome


def _news(expected: str, found: str) -> list[str]:
    """The lines of an outcome that are not in the expected one."""
    return sorted(set(found.splitlines()) - set(expected.splitlines()))


def _difference(expected: str, found: str) -> str:
    at = next(
        (n for n, (a, b) in enumerate(zip(expected, found, strict=False)) if a != b), min(len(expected), len(found))
    )
    return f"expected …{expected[max(0, at - 40) : at + 80]}… found …{found[max(0, at - 40) : at + 80]}…"


@contextmanager
def _listening() -> Iterator[Heard]:
    heard = Heard()
    logging.root.addHandler(heard)
    try:
        yield heard
    finally:
        logging.root.removeHandler(heard)
