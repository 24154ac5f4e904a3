"""Stages in forks of a process that has loaded their libraries (trainer/pipelines/fork_server.py): this end of it."""

import atexit
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from types import TracebackType
from typing import IO, NamedTuple, Self

from trainer.common.errors import Preempted
from trainer.common.stopping import KEPT, blocked_stops, on_stop, stop_requested

WITHOUT_THREADS = {"OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}
"""A process with threads cannot be forked safely. Loading NumPy starts some for products of matrices, which nothing
here computes with it, and loading PyArrow one for its memory.
"""

MESSAGE_BYTES = 256


class CannotFork(Exception):
    """A fork would not be safe, or there is nothing to fork."""


class ForkedStage:
    """A stage in a fork, with those of `subprocess.Popen`'s attributes that are needed."""

    def __init__(self, server: "ForkServer", module: str, request: IO[str]) -> None:
        """Raises `CannotFork`, and `Preempted` if this process is asked to stop while libraries are loaded."""
        reading, writing = os.pipe()
        self.stdout, self.returncode = os.fdopen(reading, "r", errors="replace"), 0
        self._answers, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with theirs, os.fdopen(writing, "w") as output, on_stop(server.end):
                server.ask(module, request.fileno(), output.fileno(), theirs.fileno())
                theirs.close()
                said, descriptors, _, _ = socket.recv_fds(self._answers, MESSAGE_BYTES, 1)
            if not said and stop_requested():
                raise Preempted(KEPT)
            if not descriptors:
                raise CannotFork(json.loads(said)["refused"] if said else "the process to fork has ended")
        except BaseException:
            self.stdout.close()
            self._answers.close()
            raise
        (self._pidfd,) = descriptors
        os.set_inheritable(self._pidfd, False)
        self.pid: int = json.loads(said)["pid"]

    def terminate(self) -> None:
        """Ask it to stop, unless it has ended."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGTERM)

    def communicate(self) -> None:
        """Read what it says, unseen, and wait for its end."""
        self.stdout.read()
        self.wait()

    def wait(self) -> int:
        """Wait for its end; returns the exit status, negative for a signal. If the server was killed, that is its
        status.
        """
        said = self._answers.recv(MESSAGE_BYTES)
        ended = select.poll()
        ended.register(self._pidfd, select.POLLIN)
        ended.poll()
        self.returncode = json.loads(said)["status"] if said else -signal.SIGKILL
        return self.returncode

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stdout.close()
        self._answers.close()
        os.close(self._pidfd)


class Surroundings(NamedTuple):
    """What a process is given by the one that starts it, as far as it may change while this one lives."""

    environment: dict[str, str]
    folder: str
    cores: frozenset[int]

    @classmethod
    def now(cls) -> Self:
        # No stage loads Prefect.
        given = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
        return cls(given, os.getcwd(), frozenset(os.sched_getaffinity(0)))


class ForkServer:
    """The process that stages are forks of. It ends when it is closed and its stages have ended."""

    def __init__(self) -> None:
        self._given = Surroundings.now()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        added = {name: value for name, value in WITHOUT_THREADS.items() if name not in self._given.environment}
        with theirs, blocked_stops():  # which are not meant for it
            self._process = subprocess.Popen(
                [sys.executable, "-m", "trainer.pipelines.fork_server", str(theirs.fileno()), *added],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, pass_fds=[theirs.fileno()],
                env={**self._given.environment, **added},
            )  # fmt: skip

    def lives(self) -> bool:
        return self._process.poll() is None

    def fits(self) -> bool:
        """Whether it gives stages what this process would give them now."""
        return self._given == Surroundings.now()

    def ask(self, module: str, *descriptors: int) -> None:
        """Ask for a stage. There will be no answer if the server has ended, or was ended by another thread."""
        with suppress(OSError):
            socket.send_fds(self._socket, [json.dumps({"module": module}).encode()], descriptors)

    def close(self) -> None:
        self._socket.close()

    def end(self) -> None:
        """End it at once; its stages are told to stop."""
        self._process.kill()
        self._process.wait()
        self.close()


_servers: list[ForkServer] = []
"""Those that were started and live, as far as is known; the last may be used."""
_starting = threading.Lock()


def fitting_server() -> ForkServer:
    """A server that gives stages what this process would give them now."""
    with _starting:
        current = _servers[-1] if _servers else None
        if current is None or not current.lives() or not current.fits():
            for server in _servers:
                server.close()
            _servers[:] = [*filter(ForkServer.lives, _servers), ForkServer()]
        return _servers[-1]


@atexit.register
def _end_servers() -> None:
    for server in _servers:
        server.end()


def _forget_servers() -> None:
    for server in _servers:
        server.close()
    _servers.clear()


os.register_at_fork(after_in_child=_forget_servers)
