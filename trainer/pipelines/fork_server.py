"""Stages as forks of one process that has loaded their libraries: `python -m trainer.pipelines.fork_server DESCRIPTOR`.

The libraries of a stage take seconds to load, and many stages take less than that for their work. This process loads
the module of a stage when it is first asked for it; each stage is a fork, which begins at once. It does nothing else,
so that what a fork finds is what a process of its own would have loaded.

A request is one message on the socket whose descriptor is given: the stage's module, with three descriptors: its
standard input, its output, and a socket for the answers. These are a message with the stage's process id and pidfd, or
one that says why there is no fork; and the exit status once it has ended, negative for a signal, as `subprocess` gives
it. A request without descriptors only has the module loaded.

A stage is told to stop as soon as nobody waits for its end any more, and the server ends when nobody can ask and no
stage runs: so nothing outlives the process that asks, however that ends. If the server itself is killed, the kernel
tells its stages (`die_with_parent`). What asks everybody to stop, as Ctrl-C does, it leaves to the stages, which may be
saving.
"""

import gc
import importlib
import json
import os
import selectors
import signal
import socket
import sys
from contextlib import ExitStack, suppress
from typing import NamedTuple, NoReturn

from trainer.common.process import QuickEnd
from trainer.common.stopping import SIGNALS, install_signal_handlers
from trainer.pipelines.child import main as run_stage

MESSAGE_BYTES = 256


class Stage(NamedTuple):
    """A stage that has not ended."""

    pid: int
    pidfd: int
    answers: socket.socket


def main(arguments: list[str]) -> int:
    """Serve until nobody is left who could ask, and every stage has ended.

    After the socket's descriptor come the variables of the environment that are for loading alone, and not for stages.
    """
    end, server = QuickEnd(), os.getpid()
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    gc.disable()  # it would look at the same libraries again and again, and each look makes a fork's pages its own
    asking, *for_loading = arguments
    requests = socket.socket(fileno=int(asking))
    with selectors.DefaultSelector() as selector:
        selector.register(requests, selectors.EVENT_READ)
        while selector.get_map():
            for key, _ in selector.select():
                if selector.get_map().get(key.fd) is not key:  # what came before it in this batch has ended it
                    continue
                stage: Stage | None = key.data
                if stage is None and not _serve(requests, selector):
                    for name in for_loading:
                        os.environ.pop(name, None)
                    _run(server, end)
                elif stage is not None and key.fd == stage.pidfd:
                    _tell_end(stage, selector)
                elif stage is not None:  # nobody waits for it any more
                    selector.unregister(stage.answers)
                    signal.pidfd_send_signal(stage.pidfd, signal.SIGTERM)
    return 0


def _serve(requests: socket.socket, selector: selectors.BaseSelector) -> bool:
    """Load a module and start the stage that is asked for; heed that nobody can ask any more. False in the fork."""
    message, descriptors, _, _ = socket.recv_fds(requests, MESSAGE_BYTES, 3)
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
    if not message:
        selector.unregister(requests)
        requests.close()
        return True
    with suppress(Exception):  # the stage meets the same, and tells it
        importlib.import_module(json.loads(message)["module"])
    if not descriptors:
        return True
    gc.freeze()
    if len(descriptors) < 3:  # the table of open files is full
        for descriptor in descriptors:
            os.close(descriptor)
        return True
    stdin, output, answering = descriptors
    with ExitStack() as received:
        received.callback(os.close, stdin)
        received.callback(os.close, output)
        answers = received.enter_context(socket.socket(fileno=answering))
        try:
            pid, pidfd = _fork()
        except OSError as error:
            _answer(answers, refused=str(error))
            return True
        if pid == 0:
            _leave_to_server(selector)
            for descriptor, place in ((stdin, 0), (output, 1), (output, 2)):
                os.dup2(descriptor, place)
            return False
        stage = Stage(pid, pidfd, answers.dup())
        for watched in (pidfd, stage.answers):
            selector.register(watched, selectors.EVENT_READ, stage)
        with suppress(OSError):  # who asked may be gone by now
            socket.send_fds(answers, [json.dumps({"pid": pid}).encode()], [pidfd])
    return True


def _fork() -> tuple[int, int]:
    """The process id and the pidfd of a fork, if one is safe; zeros in the fork. Raises `OSError` if there is none."""
    threads = len(os.listdir("/proc/self/task"))
    if threads > 1:
        raise OSError(f"they have started {threads - 1} threads")
    pid = os.fork()
    if pid == 0:
        return 0, 0
    try:
        return pid, os.pidfd_open(pid)
    except OSError:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise


def _answer(answers: socket.socket, **said: object) -> None:
    with suppress(OSError):  # who asked may be gone by now
        answers.send(json.dumps(said).encode())


def _leave_to_server(selector: selectors.BaseSelector) -> None:
    """In a fork: close what is the server's."""
    for key in selector.get_map().values():
        if isinstance(key.fileobj, socket.socket):
            key.fileobj.close()
        else:
            os.close(key.fd)
    selector.close()


def _run(server: int, end: QuickEnd) -> NoReturn:
    """In a fork: go on as `python -m trainer.pipelines.child` does."""
    gc.enable()
    install_signal_handlers()
    end(run_stage(server))


def _tell_end(stage: Stage, selector: selectors.BaseSelector) -> None:
    """Answer with the exit status, negative for a signal."""
    _, status = os.waitpid(stage.pid, 0)
    for watched in (stage.pidfd, stage.answers):
        with suppress(KeyError):
            selector.unregister(watched)
    os.close(stage.pidfd)
    with stage.answers:
        _answer(stage.answers, status=os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
