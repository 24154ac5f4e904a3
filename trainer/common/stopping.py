"""Cooperative stopping on SIGTERM, SIGINT or SIGHUP (the terminal or connection was closed).

The signal handler only sets a flag. An exception raised in a handler could surface anywhere, also in an import that a
library handles, or in a weak reference's callback, where it is lost. Between two units of work (files, documents,
batches), `check_stop` checks the flag and raises. Work that must finish first, like saving a step, uses `defer_stop`.

A worker of a cluster receives no signal; it polls a function instead (`stopping_when`).

A library may compute for a long time between two checks. So a signal also wakes a thread, which ends the process
`LATEST` seconds later, like a kill, unless it has ended or is in `defer_stop`. Stores survive a kill at any instant.
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

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

LATEST = 6.0
"""Seconds from the request, or from the end of deferred work, until the process is ended."""

FORCED_END_SECONDS = 3.0
"""Seconds that functions registered by `on_forced_end` may take before the process is ended."""

LOOK_SECONDS = 1.0
"""Seconds between two polls of a worker whether it is asked to stop."""

KEPT = "asked to stop: finished work is kept; run it again to continue"


class StopRequested(BaseException):
    """Not an `Exception`, so that error handlers let it pass up to `stoppable`."""


class _Request:
    """Whether this process was asked to stop.

    The flag is a plain value: a handler that acquires a lock could deadlock with the code that it interrupted.
    """

    def __init__(self) -> None:
        self.requested, self.status = False, EXIT_PREEMPTED
        self.announced = threading.Event()

    def make(self) -> None:
        """Request a stop, and notify waiting threads and registered functions, once."""
        self.requested = True
        if self.announced.is_set():
            return
        self.announced.set()
        for call in list(_calls):
            call()


class _SignalRequest(_Request):
    """The signal handlers, and a thread that a signal wakes even while the main thread is inside a library."""

    def __init__(self, latest: float | None) -> None:
        super().__init__()
        self._latest, self._over = latest, threading.Event()
        reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        self._woken_before = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        self._before = {signum: signal.signal(signum, self._note) for signum in SIGNALS if not _under_nohup(signum)}
        threading.Thread(target=self._watch, args=(reader,), name="stop", daemon=True).start()

    def end(self) -> None:
        """Restore the earlier handlers."""
        self._over.set()
        for signum, earlier in self._before.items():
            signal.signal(signum, earlier)
        signal.set_wakeup_fd(self._woken_before)
        os.close(self._writer)

    def _note(self, signum: int, frame: FrameType | None) -> None:
        self.requested = True

    def _watch(self, reader: int) -> None:
        while numbers := os.read(reader, 64):
            if set(numbers) & set(SIGNALS):
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
        _notify_of_end()
        if self.status == EXIT_PREEMPTED:
            with suppress(OSError):  # the terminal may be closed
                os.write(2, f"{KEPT} (forced to stop after {latest:g} s)\n".encode())
        end_at_once(self.status)


_request: _Request | None = None
_calls: list[Callable[[], None]] = []
_called_at_end: list[Callable[[], None]] = []
_unfinished: list[None] = []
"""One entry for each active `defer_stop` block, in any thread."""


def install_signal_handlers(latest: float = LATEST) -> None:
    """Treat SIGTERM, SIGINT and SIGHUP (unless `nohup` ignores it) as stop requests, until `leave`; for commands.

    If the process was started within `blocked_stops`, this includes signals that arrived earlier.
    """
    global _request
    if _request is None and threading.current_thread() is threading.main_thread():
        _request = _SignalRequest(latest)
        os.register_at_fork(after_in_child=_forget)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


@contextmanager
def blocked_stops() -> Iterator[None]:
    """Start processes in this block with the stop signals blocked, until they install their handlers.

    Python's default handler would end them with a traceback during their imports.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def signal_handlers() -> Iterator[None]:
    """Treat the same signals as stop requests during a block; for processes that are not commands of this project.

    The process is never ended by force. Raises `Preempted` if it was asked to stop.
    """
    global _request
    if _request is not None or threading.current_thread() is not threading.main_thread():
        yield
        return
    _request = signals = _SignalRequest(None)
    try:
        with stoppable():
            yield
    finally:
        signals.end()
        _request = None


@contextmanager
def stopping_when(is_asked: Callable[[], bool]) -> Iterator[None]:
    """During a block, request a stop as soon as `is_asked` returns True; it is called every second.

    For a process whose main thread, and so its signals, belongs to other code. The calls continue after a stop request,
    because they also show that the process is alive.
    """
    global _request
    _request = request = _Request()
    over = threading.Event()

    def poll() -> None:
        while not over.wait(LOOK_SECONDS):
            if is_asked():
                request.make()

    if is_asked():
        request.make()
    polling = threading.Thread(target=poll, name="stop", daemon=True)
    polling.start()
    try:
        yield
    finally:
        over.set()
        polling.join()
        _request = None


def leave(status: int) -> int:
    """Ignore stop signals from now on, while the interpreter ends; return `status`, the command's exit status."""
    if _request is not None:
        _request.status = status
        for signum in SIGNALS:
            signal.signal(signum, signal.SIG_IGN)
    return status


def request_stop() -> None:
    """Request a stop of this process, like a signal, but without ending it by force."""
    if _request is not None:
        _request.make()


def stop_requested() -> bool:
    """Whether this process was asked to stop."""
    return _request is not None and _request.requested


def check_stop() -> None:
    """Raise `StopRequested` if this process was asked to stop, except within `defer_stop`."""
    if stop_requested() and not _unfinished:
        raise StopRequested(KEPT)


def wait(seconds: float) -> None:
    """Wait, at most until this process is asked to stop."""
    if _request is None:
        threading.Event().wait(seconds)
    else:
        _request.announced.wait(seconds)


@contextmanager
def defer_stop() -> Iterator[None]:
    """Let the block finish: within it `check_stop` does not raise, and the process is not ended by force."""
    _unfinished.append(None)
    try:
        yield
    finally:
        _unfinished.pop()


@contextmanager
def on_stop(call: Callable[[], None]) -> Iterator[None]:
    """Call a function when a stop is requested during the block, from another thread; immediately if it was before."""
    _calls.append(call)
    try:
        if stop_requested():
            call()
        yield
    finally:
        _calls.remove(call)


def on_forced_end(call: Callable[[], None]) -> None:
    """Register a function that is called, in another thread, before this process is ended by force."""
    _called_at_end.append(call)


def _notify_of_end() -> None:
    threads: list[threading.Thread] = []
    for call in _called_at_end:
        with suppress(RuntimeError):  # at the limit of threads, or while Python 3.12 ends the interpreter
            (each := threading.Thread(target=call, daemon=True)).start()
            threads.append(each)
    end = time.monotonic() + FORCED_END_SECONDS
    for each in threads:
        each.join(max(0.0, end - time.monotonic()))


@contextmanager
def stoppable() -> Iterator[None]:
    """Raise `Preempted` if the block was stopped. Unexpected errors after a stop request count as caused by it.

    The same signal may have ended a worker or another rank first, which causes an error here. A `PipelineError` is
    raised unchanged.
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
        log.warning("error while stopping: %s: %s", type(error).__name__, error)
        raise Preempted(KEPT) from error


def end_at_once(status: int) -> NoReturn:
    """End this process like a kill, after killing all its child processes."""
    import psutil

    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            child.kill()
    os._exit(status)


def _forget() -> None:
    """Reset the handlers in a forked child, so that its signals do not reach the parent's thread."""
    global _request
    if _request is not None:
        signal.set_wakeup_fd(-1)
        for signum in SIGNALS:
            if not _under_nohup(signum):
                signal.signal(signum, signal.SIG_DFL)
        _request = None


def _under_nohup(signum: signal.Signals) -> bool:
    """Whether this is SIGHUP, and the process was started with it ignored, to go on when the terminal is closed."""
    return signum == signal.SIGHUP and signal.getsignal(signum) == signal.SIG_IGN
