"""Where a stage runs: in a fork of a process that has loaded its libraries (trainer/fork_server.py), or in a new process.

Both give the stage its request as standard input, this process's environment, folder, cores and group, tell it to stop when
this process ends, and know its exit status.
"""

import atexit
import json
import logging
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from glob import glob
from types import TracebackType
from typing import IO, NamedTuple, Self

from trainer.common.errors import ConfigError, Preempted
from trainer.common.stopping import KEPT, on_stop, stop_requested
from trainer.stages import STAGES

log = logging.getLogger(__name__)

CHOICE = "HEADRACE_STAGES"
"""The environment variable that may say `fork` or `spawn`. Without it, stages are forked where that is safe."""

ACCELERATORS = ("/dev/nvidia[0-9]*", "/dev/kfd", "/dev/dxg", "/dev/accel*", "/dev/davinci[0-9]*", "/dev/hl[0-9]*")
"""Their drivers do not survive a fork once they were asked for anything, which a library may do when it is loaded."""

WITHOUT_THREADS = {"OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}
"""A process with threads cannot be forked safely. Loading NumPy starts some for products of matrices, which nothing here
computes with it, and loading PyArrow one for its memory.
"""

MESSAGE_BYTES = 256


class CannotFork(Exception):
    """A fork would not be safe, or there is nothing to fork."""


def start_stage(name: str, request: IO[str], ranks: int) -> "subprocess.Popen[str] | ForkedStage":
    """Start a stage, or the launcher of its ranks, which are processes of their own, with its request as standard input.

    Raises `ConfigError` for a choice that there is not, and `Preempted` if this process is asked to stop meanwhile.
    """
    if forks():
        module = STAGES[name][0] if ranks == 1 else "trainer.child"
        try:
            return ForkedStage(_fitting_server(), module, request)
        except CannotFork as reason:
            log.warning("stage %s loads its libraries itself: %s", name, reason)
    return subprocess.Popen(
        [sys.executable, "-m", "trainer.child"], stdin=request, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        errors="replace",
    )  # fmt: skip


def load_early(name: str) -> None:
    """Begin to load a stage's libraries, if stages are forked: while this process loads its own."""
    if forks():
        _fitting_server().ask(STAGES[name][0])


def forks() -> bool:
    """Whether stages are forked. Raises `ConfigError` for a choice that there is not."""
    choice = os.environ.get(CHOICE)
    if choice not in (None, "fork", "spawn"):
        raise ConfigError(f"the environment variable {CHOICE} is {choice!r}; set it to fork or spawn, or unset it")
    possible = sys.platform.startswith("linux") and hasattr(os, "pidfd_open")
    if choice == "fork" and not possible:
        raise ConfigError(f"the environment variable {CHOICE} is 'fork', which needs Linux; unset it")
    return choice == "fork" or (choice is None and possible and not any(map(glob, ACCELERATORS)))


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
                threads = json.loads(said)["threads"] if said else None
                raise CannotFork(f"they have started {threads - 1} threads" if threads else "the process to fork has ended")
        except BaseException:
            self.stdout.close()
            self._answers.close()
            raise
        (self._pidfd,) = descriptors
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
        """Wait for its end; returns the exit status, negative for a signal. If the server was killed, that is its status."""
        said = self._answers.recv(MESSAGE_BYTES)
        select.select([self._pidfd], [], [])
        self.returncode = json.loads(said)["status"] if said else -signal.SIGKILL
        return self.returncode

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
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
        given = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}  # no stage loads Prefect
        return cls(given, os.getcwd(), frozenset(os.sched_getaffinity(0)))


class ForkServer:
    """The process that stages are forks of. It ends when it is closed and its stages have ended."""

    def __init__(self) -> None:
        self._given = Surroundings.now()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "trainer.fork_server", str(theirs.fileno())],
                stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()], env={**WITHOUT_THREADS, **self._given.environment},
            )  # fmt: skip

    def lives(self) -> bool:
        return self._process.poll() is None

    def fits(self) -> bool:
        """Whether it gives stages what this process would give them now."""
        return self._given == Surroundings.now()

    def ask(self, module: str, *descriptors: int) -> None:
        """Ask for a stage. There will be no answer if the server has ended."""
        with suppress(BrokenPipeError, ConnectionResetError):
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


def _fitting_server() -> ForkServer:
    with _starting:
        _servers[:] = [server for server in _servers if server.lives()]
        if not _servers or not _servers[-1].fits():
            for server in _servers:
                server.close()
            _servers.append(ForkServer())
        return _servers[-1]


@atexit.register
def _end_servers() -> None:
    for server in _servers:
        server.end()
