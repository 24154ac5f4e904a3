"""Stopping when asked to: SIGTERM and SIGINT are noted, and acted on at the next step boundary."""

import signal
from types import FrameType, TracebackType
from typing import Any, Self


class StopSignal:
    """For the length of a block, notes the first SIGTERM or SIGINT instead of ending the process."""

    def __init__(self) -> None:
        self.requested = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        for signum in (signal.SIGTERM, signal.SIGINT):
            self._before[signum] = signal.signal(signum, self._note)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for signum, handler in self._before.items():
            signal.signal(signum, handler)

    def _note(self, signum: int, frame: FrameType | None) -> None:
        self.requested = True
