"""The process in which a flow's stages run: `python -m trainer.pipelines.worker [MODULE]`.

It loads a module that is named with its libraries at once, and then runs the stages that it is asked for, one after
another: each request is a line of JSON on standard input, with the stage's name, its arguments, the number of ranks,
and the engine that carries them. That it began, progress, log lines, the error and the result go to standard output,
one JSON object a line. With `--rank FILE`, it is one of the ranks that torchrun starts for the request in the file.

The next stage finds the libraries loaded, and nothing else of the one before: the process ends with a stage that failed
or was stopped, that used a GPU or joined a cluster, and that had ranks of its own. It ends when standard input does,
which is when the process that asks has ended, however that was: a stage is told to stop first.
"""

import gc
import importlib
import json
import logging
import os
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from trainer.common.errors import EXIT_CRASHED, EXIT_PREEMPTED, FirstRankFailed, PipelineError, Preempted, RankLost
from trainer.common.process import QuickEnd, die_with_parent, loading, name_process, return_freed_memory
from trainer.common.stopping import (
    blocked_stops,
    check_stop,
    defer_stop,
    install_signal_handlers,
    leave,
    on_stop,
    stop_requested,
    stoppable,
)

IDLE = "stages"
"""The name of the process while it runs none: with one, it is `stage NAME`."""

SAVING_TIMEOUT = "3600"
"""Seconds that torchrun gives the ranks to save when it is told to stop; when one has failed, it gives the others
thirty.
"""

BY_SIGNAL = 128
"""Exit statuses above this one are of a process whose rank was ended by a signal: the sum with its number, as in a
shell.
"""

RANK = "--rank"
"""Says that torchrun has started this process. The environment does not: platforms say in it which pod this is."""

RANKS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
"""What torchrun says of ranks in their environment."""

STAGES = {
    "preflight": "trainer.pipelines.any_kind.preflight",
    "train": "trainer.pipelines.any_kind.train",
    "evaluate": "trainer.pipelines.any_kind.evaluate_checkpoint",
    "evaluate-run": "trainer.pipelines.any_kind.evaluate_run",
    "harness": "trainer.pipelines.any_kind.ask_harness",
    "predict": "trainer.kinds.labelled.predict.predict_texts",
}
"""What is asked for by name besides steps: the stages that publish no artifact of their own."""

TELL_SECONDS = 0.2
"""Between two looks whether ranks are to be asked to stop."""

Request = dict[str, Any]


def main(arguments: list[str]) -> int:
    """Run stages until there is none to come; returns the exit status, that of the last one if it ends this process."""
    install_signal_handlers()  # before the libraries are loaded, which takes seconds
    if arguments[:1] == [RANK]:
        die_with_parent(os.getppid())
        request = json.loads(Path(arguments[1]).read_text())
        _begin(request)
        return leave(run_rank(request["stage"], request["arguments"], launched=True))
    for name in RANKS:
        os.environ.pop(name, None)  # it is the only one
    name_process(IDLE)
    requests: SimpleQueue[Request | None] = SimpleQueue()
    receiving = os.dup(0)  # what a stage starts inherits an empty standard input
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    threading.Thread(target=_receive, args=(receiving, requests), name="requests", daemon=True).start()
    if arguments:
        _load(arguments[0])
    status = EXIT_PREEMPTED
    with on_stop(lambda: requests.put(None)):
        while (request := requests.get()) is not None:
            status = _run(request)
            if status or request["ranks"] > 1 or is_spent() or stop_requested():
                break
            status = EXIT_PREEMPTED
            _close_files()
            gc.collect()
            return_freed_memory()
    return leave(status)


def _receive(receiving: int, requests: "SimpleQueue[Request | None]") -> None:
    """Take requests until nobody can ask any more; then nobody waits for the stage that runs either."""
    try:
        with os.fdopen(receiving) as lines:
            for line in lines:
                requests.put(json.loads(line))
    finally:  # also where the last line was cut short
        os.kill(os.getpid(), signal.SIGTERM)


def _load(module: str) -> None:
    """Load a module of a stage; an error is met, and told, by the stage itself. A stop does not wait for it."""
    with loading(), on_stop(lambda: os._exit(EXIT_PREEMPTED)), suppress(Exception):
        importlib.import_module(module)


def _close_files() -> None:
    """Close what is kept of files until a process ends: copies of remote ones, open ones, and listings, which would
    be old ones for the next stage.
    """
    from trainer.store.private_folders import open_files

    open_files().close_all()
    if "trainer.store.remote" in sys.modules:
        from trainer.store.remote import let_go_of_copies

        let_go_of_copies()
    if "fsspec" in sys.modules:
        import fsspec

        for kind in fsspec.registry.values():
            for files in list(kind._cache.values()):
                files.invalidate_cache()


def is_spent() -> bool:
    """Whether a GPU or a cluster was used here, which keep much for as long as the process lives."""
    torch = sys.modules.get("torch")
    return "ray" in sys.modules or (torch is not None and torch.cuda.is_initialized())


def _begin(request: Request) -> None:
    from trainer.store import roots

    roots.remember(request["roots"])
    name_process(f"stage {request['stage']}")


def _run(request: Request) -> int:
    """Run a stage; returns its exit status."""
    from trainer.common.progress import emit

    emit(sys.stdout, "began")
    from trainer.training.logs import AsEvents, start_logging

    _begin(request)
    logging.root.handlers.clear()  # each stage may tell as much
    if request["engine"]["kind"] == "ray":
        start_logging(logging.INFO, AsEvents())
        return on_cluster(request)
    if request["ranks"] > 1:
        return launch(request)
    _load(module_of(request["stage"]))
    return run_rank(request["stage"], request["arguments"], launched=False)


def on_cluster(request: Request) -> int:
    """Have Ray carry the ranks, whose lines are passed on like those of local ones. Returns the status that tells
    most.
    """
    from trainer.config.engines import RayEngine
    from trainer.pipelines import worker

    statuses: list[int] = []

    def work() -> None:
        from trainer.engines.ray_ranks import carry_ranks

        rank = partial(worker.run_rank, request["stage"], request["arguments"], True)
        statuses.extend(
            carry_ranks(RayEngine(**request["engine"]), request["device"], request["ranks"], rank, sys.stdout)
        )

    with defer_stop():  # as the ranks are, which are asked to stop from here
        status = telling(work, 0)
    return status or (_status_of(statuses) if any(statuses) else 0)


def launch(request: Request) -> int:
    """Start the ranks of a stage with torchrun, in this process. Returns the status that tells most.

    torchrun runs in a thread: in the main one it would install handlers that raise. The ranks are asked to stop from
    here.
    """
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    # As torchrun does, with a warning; the ranks set their threads themselves.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", SAVING_TIMEOUT)
    with ThreadPoolExecutor(1, "torchrun") as pool, defer_stop():
        work = pool.submit(_torchrun, request)
        _ask_to_stop_with(work)
        try:
            work.result()
        except ChildFailedError as error:
            return _status_of([failure.exitcode for failure in error.failures.values()])
    return 0


def _torchrun(request: Request) -> None:
    from torch.distributed.run import main as torchrun

    # That it installs no handlers in a thread is no news; what it says of ranks is said here as well.
    logging.getLogger("torch.distributed.elastic.multiprocessing.api").setLevel(logging.ERROR)
    # torchrun leaves its logs behind.
    with tempfile.TemporaryDirectory(prefix="headrace-") as folder, blocked_stops():
        file = Path(folder, "request.json")
        file.write_text(json.dumps(request))
        options = ["--standalone", "--log-dir", folder, "--nproc-per-node", str(request["ranks"])]
        torchrun([*options, "-m", "trainer.pipelines.worker", RANK, str(file)])


def _ask_to_stop_with(work: "Future[None]") -> None:
    """Wait until torchrun has ended; once this process is asked to stop, ask each rank, also those that start after
    that.
    """
    import psutil

    asked: set[int] = set()
    while wait([work], TELL_SECONDS).not_done:
        for rank in psutil.Process().children() if stop_requested() else []:
            if rank.pid not in asked:
                asked.add(rank.pid)
                with suppress(psutil.NoSuchProcess):
                    rank.terminate()


def _status_of(statuses: list[int]) -> int:
    """The exit status that says most of why ranks ended: torchrun asks the others to stop when one has failed."""
    own = [status for status in statuses if status not in (EXIT_PREEMPTED, -signal.SIGTERM)]
    if not own and stop_requested():
        return EXIT_PREEMPTED
    most = max(own or statuses) or 1
    return most if most > 0 else BY_SIGNAL - most


def run_rank(name: str, arguments: dict[str, Any], launched: bool) -> int:
    """Run a stage as one of the ranks that were `launched`, or alone, and report what came of it. Returns the exit
    status.
    """
    from trainer.common.progress import as_events, emit, silent
    from trainer.training.logs import AsEvents, start_logging

    rank = int(os.environ["RANK"]) if launched else 0
    events = AsEvents(rank if launched else None)
    start_logging(logging.INFO if rank == 0 else logging.WARNING, events)

    def run() -> None:
        with loading():
            work = stage(name)
        check_stop()
        try:
            result = work(**arguments, progress=as_events(sys.stdout) if rank == 0 else silent())
        finally:
            events.tell_left_out()  # before the result, after which nobody may listen
        if not launched:
            name_process(IDLE)
        if rank == 0:
            last = launched or is_spent() or stop_requested()
            emit(sys.stdout, "result", value=result.model_dump(mode="json"), last=last)

    status = telling(run, rank)
    if launched and status == 0:
        from trainer.training.runtime import leave_group

        leave_group()
    return status


def module_of(name: str) -> str:
    """The module that a step or a stage is in."""
    from trainer.records.steps import STEPS

    return STEPS[name].module if name in STEPS else STAGES[name].rpartition(".")[0]


def stage(name: str) -> Callable[..., Any]:
    """The function of a step or a stage, taking its arguments as JSON-like values and validating them by its own
    annotations.
    """
    from trainer.records.steps import checked, make_named

    importlib.import_module(module_of(name))
    return checked(STAGES[name]) if name in STAGES else partial(make_named, name)


def telling(work: Callable[[], None], rank: int) -> int:
    """Do something for a stage, and tell the error that ends it. Returns the exit status."""
    from trainer.common.progress import emit
    from trainer.common.transient import exit_status

    try:
        with stoppable():
            check_stop()
            work()
    except Preempted as stop:
        if rank == 0:
            emit(sys.stdout, "log", level="WARNING", logger=__name__, message=str(stop))
        return EXIT_PREEMPTED
    except FirstRankFailed as error:
        return exit_status(error)
    except RankLost as error:
        _tell_error(error, rank)
        return EXIT_CRASHED  # whoever has started the ranks starts them again
    except Exception as error:
        _tell_error(error, rank)
        return exit_status(error)
    return 0


def _tell_error(error: Exception, rank: int) -> None:
    from trainer.common.progress import emit
    from trainer.common.transient import is_transient, waited_for

    told = {
        "kind": type(error).__name__,
        "message": str(error),
        "transient": is_transient(error),
        "waited_for": waited_for(error),
    }
    if not isinstance(error, PipelineError):
        told["traceback"] = traceback.format_exc()
    emit(sys.stdout, "error", **told, rank=rank)


if __name__ == "__main__":
    end = QuickEnd()
    end(main(sys.argv[1:]))
