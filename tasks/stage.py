"""Run a stage of the trainer in a worker process, and pass on its log lines, progress, error and result.

The worker (trainer/pipelines/worker.py) loads the libraries once and runs one stage after another. It is started early,
while this process loads Prefect. A new worker is started if the last one ended (after a crash, or after using a GPU),
if the surroundings of this process changed, and for each stage with several ranks. At most one idle worker is kept.
"""

import atexit
import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple, Self

from tasks import OWN_SERVER
from trainer.common import errors
from trainer.common.errors import EXIT_PREEMPTED, PipelineError, Preempted, RankLost, StorageError
from trainer.common.process import same_code
from trainer.common.progress import Update
from trainer.common.stopping import KEPT, blocked_stops, defer_stop, on_stop, stop_requested
from trainer.config.engines import Engine, LocalEngine
from trainer.pipelines.worker import BY_SIGNAL, CREDENTIALS
from trainer.store import roots

Logger = logging.Logger | logging.LoggerAdapter[Any]

LOCAL = LocalEngine()

END_SECONDS = 10.0
"""Time limit for an idle worker to end."""


class StageCrashed(RuntimeError):
    """A stage ended without a result for a reason other than bad input; it should be retried."""


class Surroundings(NamedTuple):
    """Properties that a child process inherits and that may change during this process's life."""

    environment: dict[str, str]
    folder: str
    cores: frozenset[int]

    @classmethod
    def now(cls) -> Self:
        # Stages do not use Prefect, so variables about it do not matter; credentials are part of each request.
        others = "PREFECT_", OWN_SERVER, CREDENTIALS
        given = {name: value for name, value in os.environ.items() if not name.startswith(others)}
        cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else ()
        return cls(given, os.getcwd(), frozenset(cores))


class Worker:
    """A process that runs stages. It is stopped by this process, and ends with it."""

    def __init__(self, *early: str) -> None:
        """Start the process; it imports the given module and its libraries first."""
        self._given = Surroundings.now()
        with blocked_stops():  # the child unblocks them after installing its handlers
            self.process = subprocess.Popen(
                # -P: the current folder's modules do not come before Python's own.
                [sys.executable, "-P", "-m", "trainer.pipelines.worker", *early], env=same_code(),
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                text=True, errors="replace",
            )  # fmt: skip
        assert self.process.stdin is not None and self.process.stdout is not None
        self._requests, self._said = self.process.stdin, self.process.stdout
        self.began = False
        _living.add(self)

    def fits(self) -> bool:
        """Whether the worker is alive and its surroundings are those of this process now."""
        return self.process.poll() is None and self._given == Surroundings.now()

    def run(
        self, request: dict[str, Any], show: Callable[[Update], None], logger: Logger
    ) -> tuple[int, dict[str, Any]]:
        """Run a stage; return its exit status and its error or result event.

        If this call is interrupted, it asks the worker to stop and waits for it. `began` distinguishes a worker that
        ended before the stage from one that crashed in it.
        """
        self.began = False
        try:
            with defer_stop(), on_stop(self.process.terminate):
                with suppress(OSError):  # if the worker has ended, its exit status says more
                    print(json.dumps(request), file=self._requests, flush=True)
                outcome = self._follow(show, logger)
                more = "value" in outcome and not outcome["last"]
                return (0 if more else self.process.wait()), outcome
        except BaseException:
            self.process.terminate()
            self._said.read()  # wait while it saves its state; a second interrupt ends this wait
            self.process.wait()
            raise

    def _follow(self, show: Callable[[Update], None], logger: Logger) -> dict[str, Any]:
        """Pass on the worker's events until the result, or until it ends if this is its last stage; return the error
        or result event.
        """
        outcome: dict[str, Any] = {}
        for line in self._said:
            event, others = _event(line)
            for each in others:
                logger.info("%s", each)
            match event.pop("event", None):
                case "began":
                    self.began = True
                case "progress":
                    show(Update(**event))
                case "log":
                    whose = f"[rank {event['rank']}] " if "rank" in event else ""
                    logger.log(logging.getLevelNamesMapping()[event["level"]], "%s%s", whose, event["message"])
                case "error":
                    if "kind" in outcome:  # the first error is raised, later ones are only logged
                        logger.error("[rank %s] %s: %s", event["rank"], event["kind"], event["message"])
                    else:
                        outcome = event
                case "result":
                    outcome = event
                    if not event["last"]:
                        break
        return outcome

    def ask_no_more(self) -> None:
        """Close the worker's input, so that it ends after saving its state."""
        with suppress(OSError):
            self._requests.close()

    def end(self) -> None:
        """End the worker and wait until it has ended."""
        self.ask_no_more()
        try:
            self.process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._said.close()
        _living.discard(self)

    def let_fork_go(self) -> None:
        """In a forked child, detach from the pipes, which would keep the worker alive.

        Uses `dup2`, not `close`: the parent's threads may hold the files' locks.
        """
        for pipe in (self._requests, self._said):
            if not pipe.closed:
                with open(os.devnull, "r+b", buffering=0) as nothing:
                    os.dup2(nothing.fileno(), pipe.fileno(), inheritable=False)


_living: set[Worker] = set()
_idle: list[Worker] = []
"""The idle worker, if there is one."""
_taking = threading.Lock()


def _in_fork() -> None:
    global _taking
    _taking = threading.Lock()
    _idle.clear()
    for worker in _living:
        worker.let_fork_go()


os.register_at_fork(after_in_child=_in_fork)


def load_early(*module: str) -> None:
    """Start a worker that imports the first stage's module, if given, while this process loads its own libraries.

    Replaces an earlier idle worker.
    """
    _keep(Worker(*module))


@contextmanager
def _worker(alone: bool) -> Iterator[Worker]:
    """A worker for one stage; with `alone`, no idle worker is kept beside it, and it ends after the stage."""
    if alone:
        _keep()  # an idle worker would hold memory that the ranks need
    worker = Worker() if alone else _take()
    try:
        yield worker
    except BaseException:
        if worker.process.poll() is None:  # interrupted again while it saves: its remaining output is not reused
            worker.ask_no_more()
        else:
            worker.end()
        raise
    if alone or worker.process.poll() is not None:
        worker.end()
    else:
        _keep(worker)


def _take() -> Worker:
    with _taking:
        worker = _idle.pop() if _idle else None
    if worker is not None:
        if worker.fits():
            return worker
        worker.end()
    return Worker()


@atexit.register
def _keep(*workers: Worker) -> None:
    """Keep this worker, if given, for the next stage, and end the previous idle worker."""
    with _taking:
        others, _idle[:] = _idle[:], workers
    for each in others:
        each.end()


def run_stage(
    name: str,
    arguments: dict[str, Any],
    show: Callable[[Update], None],
    logger: Logger,
    ranks: int = 1,
    engine: Engine = LOCAL,
    device: str = "auto",
) -> dict[str, Any]:
    """Run a stage and return its result.

    The engine runs the stage's `ranks`. Stop requests are passed on if this process handles them. Raises the stage's
    own `PipelineError`, `Preempted` if it was asked to stop, else `StageCrashed`.
    """
    if stop_requested():
        raise Preempted(KEPT)
    carried = {"ranks": ranks, "engine": engine.model_dump(), "device": device}
    credentials = {name: value for name, value in os.environ.items() if name.startswith(CREDENTIALS)}
    request = {"stage": name, "arguments": arguments, "roots": roots.seen(), "credentials": credentials, **carried}
    for _ in range(2):
        with _worker(alone=ranks > 1 or engine.kind != "local") as worker:
            status, outcome = worker.run(request, show, logger)
        if worker.began or stop_requested():  # else the worker was killed before the stage began: try another one
            break
    return _result(name, status, outcome)


def _event(line: str) -> tuple[dict[str, Any], list[str]]:
    """A line's event, if any, and the texts that libraries printed in the same line."""
    before, begin, rest = line.partition('{"event":')
    try:
        event, end = json.JSONDecoder().raw_decode(begin + rest) if begin else ({}, 0)
    except ValueError:
        before, event, end = line, {}, len(begin + rest)
    return event, [each.strip() for each in (before, (begin + rest)[end:]) if each.strip()]


def _result(name: str, status: int, outcome: dict[str, Any]) -> dict[str, Any]:
    if status == 0 and "value" in outcome:
        value: dict[str, Any] = outcome["value"]
        return value
    message = outcome.get("message", "")
    known = {name: outcome.get(name, False) for name in ("transient", "waited_for")}
    kind = getattr(errors, outcome.get("kind", ""), None)
    if kind is not None and issubclass(kind, PipelineError) and kind is not RankLost:
        raise kind(message, **known)  # ignoring the status, because other ranks may have ended differently
    if known["transient"] and kind is None:
        raise StorageError(f"stage {name}: {outcome['kind']}: {message}", **known)
    if status == EXIT_PREEMPTED or stop_requested():  # a signal may have arrived before the child handled signals
        raise Preempted(f"{name}: asked to stop; its state is saved, run this again to continue")
    reason = f"{outcome['kind']}: {message}\n{outcome.get('traceback', '')}" if message else "no error was reported"
    number = -status if status < 0 else status - BY_SIGNAL  # with several ranks, this is torchrun's own status
    ended = f"was killed by signal {number}" if number > 0 else f"exited with status {status}"
    raise StageCrashed(f"stage {name} {ended}: {reason}")
