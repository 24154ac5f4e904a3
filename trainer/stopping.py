"""Stopping when asked to, by SIGTERM or SIGINT: training at the next step boundary, everything else at once."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Self

from trainer.errors import Preempted

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopSignal:
    """For the length of a block, notes the first SIGTERM or SIGINT instead of ending the process."""

    def __init__(self) -> None:
        self.requested = False
        self._handling = handled_by(self._note)

    def __enter__(self) -> Self:
        self._handling.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._handling.__exit__(kind, error, trace)

    def _note(self, signum: int, frame: FrameType | None) -> None:
        self.requested = True


class _Interrupt(BaseException):
    """Passes through whatever handles errors."""


@contextmanager
def interruptible() -> Iterator[None]:
    """For the length of a block, SIGTERM and SIGINT break off what is done, with `Preempted`; finished work is kept.

    SIGTERM after that changes nothing: a group's processes may be told by each other, too. A second SIGINT, from a person who
    does not want to wait, ends the process as it would have without this.
    """

    def interrupt(signum: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        raise _Interrupt

    try:
        with handled_by(interrupt):
            yield
    except _Interrupt:
        raise Preempted("asked to stop: what is finished is kept; run it again to continue") from None


@contextmanager
def handled_by(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """For the length of a block, SIGTERM and SIGINT call a function."""
    before = {signum: signal.signal(signum, handler) for signum in SIGNALS}
    try:
        yield
    finally:
        for signum, earlier in before.items():
            signal.signal(signum, earlier)
