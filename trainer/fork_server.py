"""Stages as forks of one process that has loaded their libraries: `python -m trainer.fork_server DESCRIPTOR`.

The libraries of a stage take seconds to load, and many stages take less than that for their work. This process loads the module
of a stage when it is first asked for it; each stage is a fork, which begins at once. It does nothing else, so that what a fork
finds is what a process of its own would have loaded.

A request is one message on the socket whose descriptor is given: the stage's module, with three descriptors: its standard
input, its output, and a socket for the answers. These are a message with the stage's process id and pidfd, or one without, if
a fork would not be safe; and the exit status once it has ended, negative for a signal, as `subprocess` gives it. A request
without descriptors only has the module loaded.

A stage is told to stop as soon as nobody waits for its end any more, and the server ends when nobody can ask and no stage runs:
so nothing outlives the process that asks, however that ends. If the server itself is killed, the kernel tells its stages
(`die_with_parent`). What asks everybody to stop, as Ctrl-C does, it leaves to the stages, which may be saving.
"""

import gc
import importlib
import json
import os
import selectors
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, NoReturn

from trainer.child import main as run_stage
from trainer.common.process import QuickEnd
from trainer.common.stopping import SIGNALS, heed_stops

MESSAGE_BYTES = 256


class Stage(NamedTuple):
    """A stage that has not ended."""

    pid: int
    pidfd: int
    answers: socket.socket


def main(arguments: list[str]) -> int:
    """Serve until nobody is left who could ask, and every stage has ended."""
    end = QuickEnd()
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    gc.disable()  # it would look at the same libraries again and again, and each look makes a fork's pages its own
    asking = socket.socket(fileno=int(arguments[0]))
    with selectors.DefaultSelector() as selector:
        selector.register(asking, selectors.EVENT_READ)
        while selector.get_map():
            for key, _ in selector.select():
                stage: Stage | None = key.data
                if stage is None:
                    _serve(asking, selector, end)
                elif key.fd == stage.pidfd:
                    _tell_end(stage, selector)
                elif key.fd in selector.get_map():  # nobody waits for it any more
                    selector.unregister(stage.answers)
                    signal.pidfd_send_signal(stage.pidfd, signal.SIGTERM)
    return 0


def _serve(asking: socket.socket, selector: selectors.BaseSelector, end: QuickEnd) -> None:
    """Load a module and start the stage that is asked for, if a fork is safe; heed that nobody can ask any more."""
    message, descriptors, _, _ = socket.recv_fds(asking, MESSAGE_BYTES, 3)
    if not message:
        selector.unregister(asking)
        asking.close()
        return
    with suppress(Exception):  # the stage meets the same, and tells it
        importlib.import_module(json.loads(message)["module"])
    if not descriptors:
        return
    stdin, output, answering = descriptors
    answers = socket.socket(fileno=answering)
    gc.freeze()
    server, threads = os.getpid(), thread_count()
    pid = os.fork() if threads == 1 else None
    if pid == 0:
        _leave_to_server(selector)
        answers.close()
        _become_stage(stdin, output, server, end)
    os.close(stdin)
    os.close(output)
    with suppress(OSError):  # who asked may be gone by now
        if pid is None:
            answers.send(json.dumps({"threads": threads}).encode())
            answers.close()
            return
        pidfd = os.pidfd_open(pid)
        for watched in (pidfd, answers):
            selector.register(watched, selectors.EVENT_READ, Stage(pid, pidfd, answers))
        socket.send_fds(answers, [json.dumps({"pid": pid}).encode()], [pidfd])


def _leave_to_server(selector: selectors.BaseSelector) -> None:
    """In a fork: close what is the server's."""
    for key in selector.get_map().values():
        if isinstance(key.fileobj, socket.socket):
            key.fileobj.close()
        else:
            os.close(key.fd)
    selector.close()


def _become_stage(stdin: int, output: int, server: int, end: QuickEnd) -> NoReturn:
    """In a fork: go on as `python -m trainer.child` does."""
    for descriptor, place in ((stdin, 0), (output, 1), (output, 2)):
        os.dup2(descriptor, place)
    os.close(stdin)
    os.close(output)
    gc.enable()
    heed_stops()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    end(run_stage(server))


def _tell_end(stage: Stage, selector: selectors.BaseSelector) -> None:
    """Answer with the exit status, negative for a signal."""
    _, status = os.waitpid(stage.pid, 0)
    for watched in (stage.pidfd, stage.answers):
        with suppress(KeyError):
            selector.unregister(watched)
    os.close(stage.pidfd)
    with suppress(OSError), stage.answers:
        stage.answers.send(json.dumps({"status": os.waitstatus_to_exitcode(status)}).encode())


def thread_count() -> int:
    """Threads of this process, also those that libraries started."""
    return len(os.listdir(Path("/proc/self/task")))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
