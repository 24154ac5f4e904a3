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
from tests.trainer.fuzz.damage import DAMAGES
from tests.trainer.fuzz.readers import READERS, TELLING
from tests.trainer.fuzz.world import World, copy
from trainer.errors import PipelineError

VERDICTS = ("repaired", "refused", "told", "silent", "traceback")
"""The best first; the worst of a case's readers counts. `silent` and `traceback` must not be."""


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
        names = case.kind.readers.split()
        expected = self._undamaged(tuple(names))
        place = self._folder / f"case-{case.number:05d}"
        damaged = copy(self._world, place)
        try:
            if not DAMAGES[case.damage](place, case.key, case.draw):
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
        expected, found = (_without_own_digest(case, outcome) for outcome in (expected, found))
        if found == expected:
            return Result(case, "repaired", name, "")
        news = "; ".join([*heard.messages, *(_new_words(expected, found) if name in TELLING else [])])
        told = _names(case, "; ".join(heard.messages)) or (name in TELLING and (_tells(case, news) or _is_shown(case)))
        verdict = "told" if told or (name == "gate" and case.damage == "delete") else "silent"
        return Result(case, verdict, name, f"{news} -- {_difference(expected, found)}")


def table(results: Sequence[Result]) -> str:
    """Counts by kind of file and verdict."""
    counts = Counter((result.case.kind.name, result.verdict) for result in results)
    kinds = list(dict.fromkeys(result.case.kind.name for result in results))
    rows = [["file", "cases", *VERDICTS]]
    for kind in [*kinds, "all"]:
        each = [sum(n for (name, verdict), n in counts.items() if kind in (name, "all") and verdict == v) for v in VERDICTS]
        rows.append([kind, str(sum(each)), *map(str, each)])
    return "\n".join(f"{row[0]:<42}" + "".join(f"{cell:>10}" for cell in row[1:]) for row in rows)


def _judge_refusal(case: Case, message: str) -> str:
    """A refusal is one message on one line that names the file, its folder or its run."""
    return "refused" if _names(case, message) and "\n" not in message else "silent"


def _names(case: Case, message: str) -> bool:
    parts = case.key.split("/")
    return parts[-1] in message or "/".join(parts[:2]) in message or "/".join(parts[:-1]) in message


def _is_shown(case: Case) -> bool:
    """Whether people are shown what is there: no file where there is none, or what a record with right checksums says."""
    return case.damage in ("delete", "reseal")


def _tells(case: Case, news: str) -> bool:
    words = (
        r"damaged|unreadable|changed|missing|gone|made anew|left out|cannot be|not known|no checkpoint|refused|made|continued"
    )
    return _names(case, news) or re.search(words, news) is not None


def _plain(outcome: Any, world: World) -> str:
    return repr(_ordered(outcome)).replace(str(world.store), "STORE")


def _ordered(outcome: Any) -> Any:
    """The same without the order of keys, which files do not keep."""
    if isinstance(outcome, BaseModel):
        return _ordered(dict(outcome))
    if isinstance(outcome, dict):
        return {key: _ordered(outcome[key]) for key in sorted(outcome, key=str)}
    if isinstance(outcome, list | tuple):
        return [_ordered(each) for each in outcome]
    return outcome


def _without_own_digest(case: Case, outcome: str) -> str:
    """Of a file whose every checksum was made right again: that it is another file is no news."""
    return (
        re.sub(rf"'{re.escape(case.key.rsplit('/', 1)[-1])}': '[0-9a-f]{{64}}'", "", outcome)
        if case.damage == "reseal"
        else outcome
    )


def _new_words(expected: str, found: str) -> list[str]:
    return sorted(set(re.split(r"[\s,'()]+", found)) - set(re.split(r"[\s,'()]+", expected)))


def _difference(expected: str, found: str) -> str:
    at = next((n for n, (a, b) in enumerate(zip(expected, found, strict=False)) if a != b), min(len(expected), len(found)))
    return f"expected …{expected[max(0, at - 40) : at + 80]}… found …{found[max(0, at - 40) : at + 80]}…"


@contextmanager
def _listening() -> Iterator[Heard]:
    heard = Heard()
    logging.root.addHandler(heard)
    try:
        yield heard
    finally:
        logging.root.removeHandler(heard)
