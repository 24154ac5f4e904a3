"""The process that runs a flow's stages: `python -m trainer.pipelines.worker [MODULE]`.

It first imports MODULE, if given, with its libraries. Then it runs requested stages one after another. Each request is
a line of JSON on standard input with the stage's name, its arguments, the number of ranks, the engine that runs them,
the store's roots and its credentials. Start, progress, log lines, error and result are written to standard output, one
JSON object per line. With `--rank FILE`, the process is one of the ranks that torchrun starts for the request in the
file.

Only the loaded libraries are kept for the next stage. The process ends after a stage that failed or was stopped, used a
GPU, joined a cluster, or had several ranks. It also ends when standard input closes, that is when the requesting
process has ended; a running stage is asked to stop first.
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
"""Name of the process while it runs no stage; otherwise it is `stage NAME`."""

SAVING_TIMEOUT = "3600"
"""Seconds that torchrun gives the ranks to save after a stop request; after a failed rank it gives the others 30."""

BY_SIGNAL = 128
"""Exit status of a process whose rank was ended by a signal: this plus the signal's number, as in a shell."""

RANK = "--rank"
"""Marks a process started by torchrun. The environment cannot, because platforms also set RANK for their pods."""

RANKS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
"""Environment variables that torchrun sets for ranks."""

STAGES = {
    "preflight": "trainer.pipelines.any_kind.preflight",
    "train": "trainer.pipelines.any_kind.train",
    "evaluate": "trainer.pipelines.any_kind.evaluate_checkpoint",
    "evaluate-run": "trainer.pipelines.any_kind.evaluate_run",
    "harness": "trainer.pipelines.any_kind.evaluate_harness",
    "predict": "trainer.kinds.labelled.predict.predict_texts",
}
"""Stages that can be requested by name in addition to steps: those that publish no artifact."""

CREDENTIALS = "AWS_"
"""How the names of a store's credentials in the environment begin."""

POLL_SECONDS = 0.2
"""Interval between checks whether to ask the ranks to stop."""

Request = dict[str, Any]


def main(arguments: list[str]) -> int:
    """Run stages until no more are requested; return the exit status."""
    install_signal_handlers()  # before the libraries are loaded, which takes seconds
    sys.path.append("")  # last: modules beside the job, which its metrics and tasks may import
    if arguments[:1] == [RANK]:
        die_with_parent(os.getppid())
        request = json.loads(Path(arguments[1]).read_text())
        _begin(request)
        return leave(run_rank(request["stage"], request["arguments"], launched=True))
    for name in RANKS:
        os.environ.pop(name, None)  # this process is a single rank
    name_process(IDLE)
    requests: SimpleQueue[Request | None] = SimpleQueue()
    receiving = os.dup(0)  # processes started by a stage inherit an empty standard input
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
    """Receive requests until standard input closes; then stop the running stage, as nothing waits for it."""
    try:
        with os.fdopen(receiving) as lines:
            for line in lines:
                requests.put(json.loads(line))
    finally:  # also if the last line was incomplete
        os.kill(os.getpid(), signal.SIGTERM)


def _load(module: str) -> None:
    """Import a stage's module. Errors are ignored, because the stage reports them. A stop request ends it at once."""
    with loading(), on_stop(lambda: os._exit(EXIT_PREEMPTED)), suppress(Exception):
        importlib.import_module(module)


def _close_files() -> None:
    """Close open files; drop copies of remote files and cached listings, which may be outdated for the next stage."""
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
    """Whether this process used a GPU or a cluster, whose resources are held until the process ends."""
    torch = sys.modules.get("torch")
    return "ray" in sys.modules or (torch is not None and torch.cuda.is_initialized())


def _use(credentials: dict[str, str]) -> None:
    """Replace the store's credentials by those of the requesting process, which may have loaded them meanwhile."""
    former = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith(CREDENTIALS)}
    os.environ.update(credentials)
    if former != credentials and "fsspec" in sys.modules:
        import fsspec

        for kind in fsspec.registry.values():
            kind.clear_instance_cache()


def _begin(request: Request) -> None:
    from trainer.store import roots

    roots.remember(request["roots"])
    name_process(f"stage {request['stage']}")


def _run(request: Request) -> int:
    """Run a stage; return its exit status."""
    from trainer.common.progress import emit

    emit(sys.stdout, "began")
    _use(request.pop("credentials"))
    from trainer.training.logs import AsEvents, start_logging

    _begin(request)
    logging.root.handlers.clear()  # the log limit applies to each stage
    if request["engine"]["kind"] == "ray":
        start_logging(logging.INFO, AsEvents())
        return on_cluster(request)
    if request["ranks"] > 1:
        return launch(request)
    _load(module_of(request["stage"]))
    return run_rank(request["stage"], request["arguments"], launched=False)


def on_cluster(request: Request) -> int:
    """Run the ranks on Ray and forward their output; return the most informative exit status."""
    from trainer.config.engines import RayEngine
    from trainer.pipelines import worker

    statuses: list[int] = []

    def work() -> None:
        from trainer.engines.ray_ranks import carry_ranks

        rank = partial(worker.run_on_node, request["stage"], request["arguments"])
        engine, device, most = RayEngine(**request["engine"]), request["device"], request["ranks"]
        statuses.extend(carry_ranks(engine, device, most, rank, sys.stdout))

    with defer_stop():  # the ranks are asked to stop from here
        status = run_and_report(work, 0)
    return status or (_status_of(statuses) if any(statuses) else 0)


def launch(request: Request) -> int:
    """Start the ranks of a stage with torchrun, in this process; return the most informative exit status.

    torchrun runs in a thread, because in the main thread it would install signal handlers that raise. The ranks are
    asked to stop from here.
    """
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    from trainer.common.progress import emit

    # torchrun would set this with a warning; the ranks set their threads themselves.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", SAVING_TIMEOUT)
    with ThreadPoolExecutor(1, "torchrun") as pool, defer_stop():
        work = pool.submit(_torchrun, request)
        _ask_to_stop_with(work)
        try:
            work.result()
        except ChildFailedError as error:
            ended = {rank: failure.exitcode for rank, failure in error.failures.items()}
            for rank, status in ended.items():
                if status < 0 and not stop_requested():  # it could report nothing, and stops the others as they compute
                    message = f"rank {rank} of {request['ranks']} was killed by signal {-status}"
                    emit(sys.stdout, "error", kind=RankLost.__name__, message=message, rank=rank)
            return _status_of(list(ended.values()))
    return 0


def _torchrun(request: Request) -> None:
    from torch.distributed.run import main as torchrun

    # Hides the warning about signal handlers in a thread, and messages about ranks, which are also reported here.
    logging.getLogger("torch.distributed.elastic.multiprocessing.api").setLevel(logging.ERROR)
    # torchrun does not remove its logs.
    with tempfile.TemporaryDirectory(prefix="headrace-") as folder, blocked_stops():
        file = Path(folder, "request.json")
        file.write_text(json.dumps(request))
        options = ["--standalone", "--log-dir", folder, "--nproc-per-node", str(request["ranks"])]
        # As torchrun starts a module, with -P: the current folder's modules are not imported.
        rank = [sys.executable, "-u", "-P", "-m", "trainer.pipelines.worker", RANK, str(file)]
        torchrun([*options, "--no-python", *rank])


def _ask_to_stop_with(work: "Future[None]") -> None:
    """Wait until torchrun has ended; after a stop request, ask each rank to stop, including ranks that start later."""
    import psutil

    stopped: set[int] = set()
    while wait([work], POLL_SECONDS).not_done:
        for rank in psutil.Process().children() if stop_requested() else []:
            if rank.pid not in stopped:
                stopped.add(rank.pid)
                with suppress(psutil.NoSuchProcess):
                    rank.terminate()


def _status_of(statuses: list[int]) -> int:
    """The most informative exit status: when one rank fails, torchrun asks the others to stop."""
    own = [status for status in statuses if status not in (EXIT_PREEMPTED, -signal.SIGTERM)]
    if not own and stop_requested():
        return EXIT_PREEMPTED
    most = max(own or statuses) or 1
    return most if most > 0 else BY_SIGNAL - most


def run_rank(name: str, arguments: dict[str, Any], launched: bool) -> int:
    """Run a stage as one of several `launched` ranks, or alone, and report the result; return the exit status."""
    from trainer.common.progress import as_events, emit, silent
    from trainer.training.logs import AsEvents, start_logging

    rank = int(os.environ["RANK"]) if launched else 0
    events = AsEvents(rank if launched else None)
    start_logging(logging.INFO if rank == 0 else logging.WARNING, events)

    def run() -> None:
        with loading():
            work = stage(name)
            if launched:
                from trainer.training.rank_watchdog import report_lost_ranks

                report_lost_ranks(partial(_report_error, rank=rank))
        check_stop()
        try:
            result = work(**arguments, progress=as_events(sys.stdout) if rank == 0 else silent())
        finally:
            events.log_left_out()  # before the result, after which nothing may read
        if not launched:
            name_process(IDLE)
        if rank == 0:
            last = launched or is_spent() or stop_requested()
            emit(sys.stdout, "result", value=result.model_dump(mode="json"), last=last)

    status = run_and_report(run, rank)
    if launched and status == 0:
        from trainer.training.runtime import leave_group

        leave_group()
    return status


def run_on_node(name: str, arguments: dict[str, Any], versions: dict[str, str]) -> int:
    """Run a stage as a rank on a node of a cluster, which may have joined after the preflight: it must have the
    `versions` of the stage's machine. Return the exit status.
    """
    from trainer.engines.consistency import require_versions

    status = run_and_report(lambda: require_versions(versions), int(os.environ["RANK"]))
    return status or run_rank(name, arguments, True)


def module_of(name: str) -> str:
    """The module of a step or a stage."""
    from trainer.records.steps import STEPS

    return STEPS[name].module if name in STEPS else STAGES[name].rpartition(".")[0]


def stage(name: str) -> Callable[..., Any]:
    """The function of a step or a stage, which validates JSON-like arguments by its annotations."""
    from trainer.records.steps import checked, make_named

    importlib.import_module(module_of(name))
    return checked(STAGES[name]) if name in STAGES else partial(make_named, name)


def run_and_report(work: Callable[[], None], rank: int) -> int:
    """Run a stage's work and report the error that ends it; return the exit status."""
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
        _report_error(error, rank)
        return EXIT_CRASHED  # the process that started the ranks starts them again
    except Exception as error:
        _report_error(error, rank)
        return exit_status(error)
    return 0


def _report_error(error: Exception, rank: int) -> None:
    from trainer.common.progress import emit
    from trainer.common.transient import is_transient, waited_for

    fields = {
        "kind": type(error).__name__,
        "message": str(error),
        "transient": is_transient(error),
        "waited_for": waited_for(error),
    }
    if not isinstance(error, PipelineError):
        fields["traceback"] = traceback.format_exc()
    emit(sys.stdout, "error", **fields, rank=rank)


if __name__ == "__main__":
    end = QuickEnd()
    end(main(sys.argv[1:]))
