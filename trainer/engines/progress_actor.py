"""Where the tasks and workers of a stage say how far they are, what they log and how they end, and ask whether to stop.

An actor on the stage's own machine: it ends with the stage.
"""

import io
import threading
import time
from typing import Any

TELL_SECONDS = 0.5
"""Between two reports of how far a unit is."""


class ProgressActor:
    """The actor."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._done: dict[int, int] = {}
        self._ended: dict[str, dict[int, int]] = {}
        self._stopping, self._asked = False, time.monotonic()

    def say(self, line: str) -> None:
        """A line for the stage's output."""
        self._lines.append(line)

    def take(self) -> tuple[list[str], float]:
        """The lines since the last call, and the seconds since a rank has shown life, by asking whether to stop."""
        lines, self._lines = self._lines, []
        return lines, time.monotonic() - self._asked

    def reach(self, unit: int, done: int) -> None:
        """How far a unit of work is; one that was lost begins again."""
        self._done[unit] = done

    def done(self) -> int:
        """How far all units are together."""
        return sum(self._done.values())

    def ask_to_stop(self) -> None:
        self._stopping = True

    def is_stopping(self) -> bool:
        self._asked = time.monotonic()
        return self._stopping

    def end(self, start: str, rank: int, status: int) -> None:
        """The status that a rank has ended with, of those that were started together."""
        self._ended.setdefault(start, {})[rank] = status

    def ended(self, start: str) -> int:
        """How many of the ranks that were started together have ended."""
        return len(self._ended.get(start, {}))

    def statuses(self) -> list[int]:
        """Those that ranks have ended with, other than by being lost."""
        return [status for ranks in self._ended.values() for status in ranks.values()]


class Count:
    """Tells a progress actor how far a unit of work is."""

    def __init__(self, actor: Any, unit: int) -> None:
        self._actor, self._unit, self._done, self._told = actor, unit, 0, 0.0

    def advance(self, amount: int) -> None:
        self._done += amount
        now = time.monotonic()
        if now - self._told >= TELL_SECONDS:
            self._told = now
            self.tell()

    def tell(self) -> None:
        self._actor.reach.remote(self._unit, self._done)


class Saying(io.TextIOBase):
    """Sends what is written to a progress actor, line by line."""

    def __init__(self, actor: Any) -> None:
        self._actor, self._begun, self._turn = actor, "", threading.Lock()

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        with self._turn:
            *lines, self._begun = (self._begun + text).split("\n")
            for line in lines:
                self._actor.say.remote(line)
        return len(text)
