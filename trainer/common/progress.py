"""Progress of long work: bars in a terminal, plain lines elsewhere, JSON events for a parent process."""

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from typing import TextIO

from trainer.common.display import plural, size


@dataclass(frozen=True)
class Update:
    """State of one piece of work: `done` of `total` units (None: unknown), and a note such as the loss.

    `start` units were done by an earlier run that this one continues, before `seconds` began.
    """

    title: str
    done: int
    total: int | None
    unit: str
    seconds: float
    note: str = ""
    finished: bool = False
    start: int = 0


Show = Callable[[Update], None]


class Bar:
    """Counts the units of one piece of work, from any thread, and shows them at most every `interval` seconds."""

    def __init__(self, title: str, total: int | None, unit: str, show: Show, interval: float, done: int = 0) -> None:
        self.title, self.total, self.unit = title, total, unit
        self.start = self.done = done
        self._note = ""
        self._show, self._interval = show, interval
        self._started = self._shown = time.monotonic()
        self._lock = threading.Lock()

    def advance(self, units: int) -> None:
        """Add units to the count."""
        with self._lock:
            self.done += units
            self._update()

    def reach(self, done: int, note: str = "") -> None:
        """Set the count, and the note if it is not empty."""
        with self._lock:
            self.done, self._note = done, note or self._note
            self._update()

    def finish(self) -> None:
        with self._lock:
            self._update(finished=True)

    def _update(self, finished: bool = False) -> None:
        now = time.monotonic()
        if finished or now - self._shown >= self._interval:
            self._shown = now
            done = min(self.done, self.total) if self.total is not None else self.done
            self._show(
                Update(self.title, done, self.total, self.unit, now - self._started, self._note, finished, self.start)
            )


class Progress:
    """Creates bars that share one output."""

    def __init__(self, show: Show, interval: float) -> None:
        self._show, self._interval = show, interval

    @contextmanager
    def bar(self, title: str, total: int | None, unit: str, done: int = 0) -> Iterator[Bar]:
        """Create a bar for the duration of a block; nothing is shown if no unit was done."""
        bar = Bar(title, total, unit, self._show, self._interval, done)
        try:
            yield bar
        finally:
            if bar.done > done:
                bar.finish()


def silent() -> Progress:
    """Progress without output."""
    return Progress(lambda update: None, interval=float("inf"))


def for_people(stream: TextIO = sys.stderr) -> Progress:
    """Bars if the stream is a terminal, else a plain line every ten seconds."""
    return Progress(terminal_bars(stream), 0.2) if stream.isatty() else Progress(plain_lines(stream), 10.0)


def as_events(stream: TextIO = sys.stdout) -> Progress:
    """One JSON object per line, for the parent process."""

    def show(update: Update) -> None:
        emit(stream, "progress", **asdict(update))

    return Progress(show, 0.5)


def emit(stream: TextIO, event: str, **values: object) -> None:
    """Write one event as a line of JSON. Ignore a closed pipe, so that the work continues to its next stop point."""
    with suppress(BrokenPipeError):
        stream.write(json.dumps({"event": event, **values}) + "\n")
        stream.flush()


def terminal_bars(stream: TextIO = sys.stderr) -> Show:
    """Show updates as tqdm bars."""
    from tqdm import tqdm

    bars: dict[str, tqdm] = {}  # type: ignore[type-arg]

    def show(update: Update) -> None:
        bar = bars.get(update.title)
        if bar is None:
            bar = bars[update.title] = tqdm(
                desc=update.title, total=update.total, unit=update.unit, unit_scale=update.unit == "B", file=stream,
                initial=update.start, dynamic_ncols=True,
            )  # fmt: skip
        bar.set_postfix_str(update.note, refresh=False)
        bar.update(update.done - bar.n)
        if update.finished:
            bar.close()
            del bars[update.title]

    return show


def plain_lines(stream: TextIO = sys.stderr) -> Show:
    """Show updates as lines of text."""

    def show(update: Update) -> None:
        with suppress(OSError):  # the terminal may be closed, or the reader of a pipe gone
            stream.write(describe(update) + "\n")
            stream.flush()

    return show


def describe(update: Update) -> str:
    """One line such as `train: 120 of 300 steps (40%), 1.2 steps/s, 150 s left; loss 4.2`."""
    rate = (update.done - update.start) / update.seconds if update.seconds > 0 else 0.0
    if update.total:
        done = f"{update.done:,} of " if update.unit != "B" else f"{_amount(update.done, update.unit)} of "
        line = f"{update.title}: {done}{_amount(update.total, update.unit)} ({100 * update.done // update.total}%)"
    else:
        line = f"{update.title}: {_amount(update.done, update.unit)}"
    line += f", {_amount(rate, update.unit)}/s"
    if update.total and rate and not update.finished:
        line += f", {(update.total - update.done) / rate:.0f} s left"
    return line + (f"; {update.note}" if update.note else "")


def _amount(value: float, unit: str) -> str:
    if unit == "B":
        return size(value)
    if isinstance(value, int):
        return plural(value, unit)
    return f"{value:,.0f} {unit}s" if value >= 100 else f"{value:.3g} {unit}s"
