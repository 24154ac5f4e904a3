"""Running a stage of the trainer in a worker process, and passing on its log lines, progress, error and result.

The worker (trainer/pipelines/worker.py) loads the libraries once and runs one stage after another. It is started early,
while this process loads Prefect; another one is started where it has ended, as it does by a crash or after it used a
GPU, where what a process is given has changed since, and for each stage of several ranks. At most one waits for work.
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

from trainer.common import errors
from trainer.common.errors import EXIT_PREEMPTED, PipelineError, Preempted, RankLost, StorageError
from trainer.common.progress import Update
from trainer.common.stopping import KEPT, blocked_stops, defer_stop, on_stop, stop_requested
from trainer.config.engines import Engine, LocalEngine
from trainer.pipelines.worker import BY_SIGNAL
from trainer.store import roots

Logger = logging.Logger | logging.LoggerAdapter[Any]

LOCAL = LocalEngine()

END_SECONDS = 10.0
"""What a worker that runs no stage may take to end."""


class StageCrashed(RuntimeError):
    """A stage ended without a result, for a reason that is not the user's; worth another try."""


class Surroundings(NamedTuple):
    """What a process is given by the one that starts it, as far as it may change while this one lives."""

    environment: dict[str, str]
    folder: str
    cores: frozenset[int]

    @classmethod
    def now(cls) -> Self:
        # No stage loads Prefect.
        given = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
        cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else ()
        return cls(given, os.getcwd(), frozenset(cores))


class Worker:
    """A process in which stages run, in this process's group: a cancel reaches it. It ends when this process does."""

    def __init__(self, *early: str) -> None:
        """Start it, and have it load a module that is named, with the libraries that this needs."""
        self._given = Surroundings.now()
        with blocked_stops():  # until it has said what they mean to it
            self.process = subprocess.Popen(
                [sys.executable, "-m", "trainer.pipelines.worker", *early], stdin=subprocess.PIPE,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                text=True, errors="replace",
            )  # fmt: skip
        assert self.process.stdin is not None and self.process.stdout is not None
        self._requests, self._said = self.process.stdin, self.process.stdout
        self.began = False
        _living.add(self)

    def fits(self) -> bool:
        """Whether it lives, and was given what this process would give one now."""
        return self.process.poll() is None and self._given == Surroundings.now()

    def run(
        self, request: dict[str, Any], show: Callable[[Update], None], logger: Logger
    ) -> tuple[int, dict[str, Any]]:
        """Run a stage; returns its exit status, and its error or result event. If it is broken off here, the worker is
        told to stop, and waited for. Whether it `began` tells one that ended before from one that crashed.
        """
        self.began = False
        try:
            with defer_stop(), on_stop(self.process.terminate):
                with suppress(OSError):  # if it has ended, its status tells more
                    print(json.dumps(request), file=self._requests, flush=True)
                outcome = self._follow(show, logger)
                more = "value" in outcome and not outcome["last"]
                return (0 if more else self.process.wait()), outcome
        except BaseException:
            self.process.terminate()
            self._said.read()  # it saves its state, and says so; a second interrupt ends the waiting
            self.process.wait()
            raise

    def _follow(self, show: Callable[[Update], None], logger: Logger) -> dict[str, Any]:
        """Pass on what it says, until the result if it runs other stages after that, else until it ends; returns the
        error or result event.
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
                    if "kind" in outcome:  # the first is raised
                        logger.error("[rank %s] %s: %s", event["rank"], event["kind"], event["message"])
                    else:
                        outcome = event
                case "result":
                    outcome = event
                    if not event["last"]:
                        break
        return outcome

    def ask_no_more(self) -> None:
        """Have it end, when it has saved its state."""
        with suppress(OSError):
            self._requests.close()

    def end(self) -> None:
        """Have it end, and wait for that."""
        self.ask_no_more()
        try:
            self.process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._said.close()
        _living.discard(self)

    def let_fork_go(self) -> None:
        """In a forked child: it would keep the worker alive. Without the locks that the parent's threads may hold."""
        for pipe in (self._requests, self._said):
            if not pipe.closed:
                with open(os.devnull, "r+b", buffering=0) as nothing:
                    os.dup2(nothing.fileno(), pipe.fileno(), inheritable=False)


_living: set[Worker] = set()
_idle: list[Worker] = []
"""The worker that runs no stage, if there is one."""
_taking = threading.Lock()


def _in_fork() -> None:
    global _taking
    _taking = threading.Lock()
    _idle.clear()
    for worker in _living:
        worker.let_fork_go()


os.register_at_fork(after_in_child=_in_fork)


def load_early(*module: str) -> None:
    """Begin to load a module of the first stage, if one is named, and its libraries, while this process loads its own;
    in place of what was begun before.
    """
    _keep(Worker(*module))


@contextmanager
def _worker(alone: bool) -> Iterator[Worker]:
    """A worker that runs no other stage meanwhile, and none after that if this one is to be `alone`."""
    if alone:
        _keep()  # the others would only hold memory that its ranks need
    worker = Worker() if alone else _take()
    try:
        yield worker
    except BaseException:
        if worker.process.poll() is None:  # interrupted again while it saves: what it still says is no other stage's
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
    """Keep this worker, if any, for the next stage, and end another that waits for one."""
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
    """Run a stage and return its result. The engine carries its ranks; without any, a stage runs here, and may use it.

    If this process heeds stops, it passes them on. Raises the stage's own `PipelineError`, `Preempted` if it was asked
    to stop, else `StageCrashed`.
    """
    if stop_requested():
        raise Preempted(KEPT)
    carried = {"ranks": ranks, "engine": engine.model_dump(), "device": device}
    request = {"stage": name, "arguments": arguments, "roots": roots.seen(), **carried}
    for _ in range(2):
        with _worker(alone=ranks > 1 or engine.kind != "local") as worker:
            status, outcome = worker.run(request, show, logger)
        if (
            worker.began or stop_requested()
        ):  # else it was killed just when it was taken, and another one runs the stage
            break
    return _result(name, status, outcome)


def _event(line: str) -> tuple[dict[str, Any], list[str]]:
    """A line's event, and what libraries printed in the same line before and after it, or in place of one."""
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
        raise kind(message, **known)  # whatever the status: other ranks may have ended otherwise
    if known["transient"] and kind is None:
        raise StorageError(f"stage {name}: {outcome['kind']}: {message}", **known)
    if status == EXIT_PREEMPTED or stop_requested():  # a signal may have come before the child could heed it
        raise Preempted(f"{name}: asked to stop; its state is saved, and running it again continues")
    reason = f"{outcome['kind']}: {message}\n{outcome.get('traceback', '')}" if message else "it said nothing"
    number = -status if status < 0 else status - BY_SIGNAL  # of several ranks only torchrun's own status is seen
    ended = f"was ended by signal {number}" if number > 0 else f"ended with status {status}"
    raise StageCrashed(f"stage {name} {ended}: {reason}")
