"""Stopping when asked to, by SIGTERM or SIGINT.

A signal sets a flag, and nothing else: an exception that a handler raised would land anywhere, also in an import that a
library only tries or in the callback of a weak reference, where it is lost. Between two units of work (files,
documents, batches) `check_stop` looks at the flag and raises. What must come to its end, like the save of a step, is
`defer_stop`.

A worker of a cluster is asked in another way: whoever started it says so when it is asked (`stopping_when`).

A library may compute for long between two looks. So a signal also wakes a thread, which ends a command `LATEST` seconds
later as a kill would, unless it has ended by itself or is finishing. Stores survive that, as they do a kill at any
instant.
"""

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import NoReturn

from trainer.common.errors import EXIT_PREEMPTED, PipelineError, Preempted

log = logging.getLogger(__name__)

SIGNALS = (signal.SIGTERM, signal.SIGINT)

LATEST = 6.0
"""Seconds from the request, or from the end of what had to be finished, to the end of the process."""

TELLING_SECONDS = 3.0
"""What those who are told that the process is ended may take; it is ended meanwhile if they take longer."""

LOOK_SECONDS = 1.0
"""Between two questions of a worker whether it is asked to stop."""

KEPT = "asked to stop: what is finished is kept; run it again to continue"


class StopRequested(BaseException):
    """Passes through whatever handles errors, up to `stoppable`."""


class _Request:
    """Whether this process was asked to stop.

    The flag is a plain value: a handler that took a lock could wait for ever for the code that it interrupted.
    """

    def __init__(self) -> None:
        self.requested, self.status = False, EXIT_PREEMPTED
        self.told = threading.Event()

    def make(self) -> None:
        """Ask, and tell those who wait for that."""
        self.requested = True
        self.told.set()
        for call in list(_calls):
            call()


class _Heeding(_Request):
    """The handlers, and the thread that a signal wakes also while the main thread is inside a library."""

    def __init__(self, latest: float | None) -> None:
        super().__init__()
        self._latest, self._over = latest, threading.Event()
        reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        self._woken_before = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        self._before = {signum: signal.signal(signum, self._note) for signum in SIGNALS}
        threading.Thread(target=self._watch, args=(reader,), name="stop", daemon=True).start()

    def end(self) -> None:
        """Put back what was before."""
        self._over.set()
        for signum, earlier in self._before.items():
            signal.signal(signum, earlier)
        signal.set_wakeup_fd(self._woken_before)
        os.close(self._writer)

    def _note(self, signum: int, frame: FrameType | None) -> None:
        self.requested = True

    def _watch(self, reader: int) -> None:
        while numbers := os.read(reader, 64):
            if not self.told.is_set() and set(numbers) & set(SIGNALS):
                self.make()
                if self._latest is not None:
                    self._end_in_time(self._latest)
        os.close(reader)

    def _end_in_time(self, latest: float) -> None:
        waited = 0.0
        while waited < latest:
            if self._over.wait(0.1):
                return
            waited = 0.0 if _unfinished else waited + 0.1
        _tell_end()
        if self.status == EXIT_PREEMPTED:
            os.write(2, f"{KEPT} (it came to no place to stop within {latest:g} s)\n".encode())
        end_at_once(self.status)


_heeding: _Request | None = None
_calls: list[Callable[[], None]] = []
_told_of_end: list[Callable[[], None]] = []
_unfinished: list[None] = []
"""One entry for each block that is finishing, in any thread."""


def install_signal_handlers(latest: float = LATEST) -> None:
    """From now on, SIGTERM and SIGINT ask this process to stop. For commands: it stays so until `leave`.

    Also one that came before, if this process was started with them `blocked_stops`.
    """
    global _heeding
    if _heeding is None and threading.current_thread() is threading.main_thread():
        _heeding = _Heeding(latest)
        os.register_at_fork(after_in_child=_forget)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


@contextmanager
def blocked_stops() -> Iterator[None]:
    """Have what this thread starts in the block begin with these signals blocked, until it has said what they mean to
    it.

    Python's own handler would end it with a traceback of wherever its imports are.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def signal_handlers() -> Iterator[None]:
    """The same for the length of a block, in a process that is not a command of this project: it is never ended from
    here.

    Raises `Preempted` if it was stopped.
    """
    global _heeding
    if _heeding is not None or threading.current_thread() is not threading.main_thread():
        yield
        return
    _heeding = signals = _Heeding(None)
    try:
        with stoppable():
            yield
    finally:
        signals.end()
        _heeding = None


@contextmanager
def stopping_when(is_asked: Callable[[], bool]) -> Iterator[None]:
    """For the length of a block, this process is asked to stop once `is_asked` says so, which is called every second.

    For a process whose main thread, and with it its signals, is somebody else's. It is called to the end, as a sign of
    life.
    """
    global _heeding
    _heeding = request = _Request()
    over = threading.Event()

    def look() -> None:
        while not over.wait(LOOK_SECONDS):
            if is_asked() and not request.requested:
                request.make()

    if is_asked():
        request.make()
    looking = threading.Thread(target=look, name="stop", daemon=True)
    looking.start()
    try:
        yield
    finally:
        over.set()
        looking.join()
        _heeding = None


def leave(status: int) -> int:
    """End a command's work with an exit status: what is asked from now on, while the interpreter ends, changes
    nothing.
    """
    if _heeding is not None:
        _heeding.status = status
        for signum in SIGNALS:
            signal.signal(signum, signal.SIG_IGN)
    return status


def stop_requested() -> bool:
    """Whether this process was asked to stop."""
    return _heeding is not None and _heeding.requested


def check_stop() -> None:
    """Raise `StopRequested` if this process was asked to stop, unless it is finishing something."""
    if stop_requested() and not _unfinished:
        raise StopRequested


def wait(seconds: float) -> None:
    """Wait, until asked to stop at the longest."""
    if _heeding is None:
        threading.Event().wait(seconds)
    else:
        _heeding.told.wait(seconds)


@contextmanager
def defer_stop() -> Iterator[None]:
    """What is done in the block comes to its end: `check_stop` raises nothing, and the process is not ended
    meanwhile.
    """
    _unfinished.append(None)
    try:
        yield
    finally:
        _unfinished.pop()


@contextmanager
def on_stop(call: Callable[[], None]) -> Iterator[None]:
    """Have a function called, in another thread, when a stop is asked for during the block; at once if it was
    before.
    """
    _calls.append(call)
    try:
        if stop_requested():
            call()
        yield
    finally:
        _calls.remove(call)


def tell_if_ended(call: Callable[[], None]) -> None:
    """Have a function called, in another thread, if this process is ended because it came to no place to stop."""
    _told_of_end.append(call)


def _tell_end() -> None:
    tellers = [threading.Thread(target=call, daemon=True) for call in _told_of_end]
    for each in tellers:
        each.start()
    end = time.monotonic() + TELLING_SECONDS
    for each in tellers:
        each.join(max(0.0, end - time.monotonic()))


@contextmanager
def stoppable() -> Iterator[None]:
    """Raise `Preempted` where the block was stopped. What breaks after a stop was asked for, breaks by it.

    The same signal may have ended a worker or another rank first, which is noticed as an error. Errors that tell what
    to do pass as they are.
    """
    try:
        yield
    except StopRequested:
        raise Preempted(KEPT) from None
    except (PipelineError, Preempted):
        raise
    except Exception as error:
        if not stop_requested():
            raise
        log.warning("while it was stopped: %s: %s", type(error).__name__, error)
        raise Preempted(KEPT) from error


def end_at_once(status: int) -> NoReturn:
    """End this process as a kill would, and leave no process behind that would have been ended by this one."""
    import psutil

    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            child.kill()
    os._exit(status)


def _forget() -> None:
    """In a forked child: its signals are its own, and not to be told to its parent."""
    global _heeding
    if _heeding is not None:
        signal.set_wakeup_fd(-1)
        for signum in SIGNALS:
            signal.signal(signum, signal.SIG_DFL)
        _heeding = None
