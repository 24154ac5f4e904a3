"""One stage in a process of its own: `python -m trainer.pipelines.child < REQUEST.json`.

The request names the stage, its arguments, the number of ranks, the engine that carries them, and the process that
waits for it. Progress, log lines, the error and the result go to standard output, one JSON object a line. The process
ends when the one that waits for it ends.
"""

import json
import logging
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from functools import partial
from typing import Any

from trainer.common.errors import EXIT_CRASHED, EXIT_PREEMPTED, FirstRankFailed, PipelineError, Preempted, RankLost
from trainer.common.process import loading
from trainer.common.stopping import (
    blocked_stops,
    check_stop,
    defer_stop,
    install_signal_handlers,
    leave,
    stop_requested,
    stoppable,
)

SAVING_TIMEOUT = "3600"
"""Seconds that torchrun gives the ranks to save when it is told to stop; when one has failed, it gives the others
thirty.
"""

BY_SIGNAL = 128
"""Exit statuses above this one are of a process whose rank was ended by a signal: the sum with its number, as in a
shell.
"""

TELL_SECONDS = 0.2
"""Between two looks whether ranks are to be asked to stop."""


def main(parent: int | None = None) -> int:
    """Run the requested stage; returns the exit status. `parent` is the process that has started this one, if it is
    another than the one that waits."""
    install_signal_handlers()  # before the libraries are loaded, which takes seconds
    from trainer.common.process import die_with_parent, name_process
    from trainer.store import roots
    from trainer.training.logs import AsEvents, start_logging

    stdin = sys.stdin.fileno()
    # A file, which several ranks read, each from its start.
    request = json.loads(os.pread(stdin, os.fstat(stdin).st_size, 0))
    roots.remember(request["roots"])
    launched = "RANK" in os.environ
    name_process(f"stage {request['stage']}")
    die_with_parent(os.getppid() if launched else parent or request["parent"])
    if request["engine"]["kind"] == "ray":
        start_logging(logging.INFO, AsEvents())
        return leave(on_cluster(request))
    if request["ranks"] > 1 and not launched:
        return leave(launch(request["ranks"]))
    status = run_rank(request["stage"], request["arguments"], launched)
    return leave(status)


def on_cluster(request: dict[str, Any]) -> int:
    """Have Ray carry the ranks, whose lines are passed on like those of local ones. Returns the status that tells
    most.
    """
    from trainer.config.engines import RayEngine
    from trainer.pipelines import child

    statuses: list[int] = []

    def work() -> None:
        from trainer.engines.ray_ranks import carry_ranks

        rank = partial(child.run_rank, request["stage"], request["arguments"], True)
        statuses.extend(
            carry_ranks(RayEngine(**request["engine"]), request["device"], request["ranks"], rank, sys.stdout)
        )

    with defer_stop():  # as the ranks are, which are asked to stop from here
        status = telling(work, 0)
    return status or (_status_of(statuses) if any(statuses) else 0)


def launch(ranks: int) -> int:
    """Start the ranks with torchrun, in this process; they inherit the request. Returns the status that tells most.

    torchrun runs in a thread: in the main one it would install handlers that raise. The ranks are asked to stop from
    here.
    """
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    # As torchrun does, with a warning; the ranks set their threads themselves.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", SAVING_TIMEOUT)
    with ThreadPoolExecutor(1, "torchrun") as pool, defer_stop():
        work = pool.submit(_torchrun, ranks)
        _ask_to_stop_with(work)
        try:
            work.result()
        except ChildFailedError as error:
            return _status_of([failure.exitcode for failure in error.failures.values()])
    return 0


def _torchrun(ranks: int) -> None:
    from torch.distributed.run import main as torchrun

    # That it installs no handlers in a thread is no news; what it says of ranks is said here as well.
    logging.getLogger("torch.distributed.elastic.multiprocessing.api").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory(prefix="headrace-") as logs, blocked_stops():  # torchrun leaves its own behind
        torchrun(["--standalone", "--log-dir", logs, "--nproc-per-node", str(ranks), "-m", "trainer.pipelines.child"])


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

    rank = int(os.environ.get("RANK", "0"))
    start_logging(logging.INFO if rank == 0 else logging.WARNING, AsEvents(rank if launched else None))

    def run() -> None:
        from trainer.pipelines.stage_table import stage

        with loading():
            work = stage(name)
        check_stop()
        result = work(**arguments, progress=as_events(sys.stdout) if rank == 0 else silent())
        if rank == 0:
            emit(sys.stdout, "result", value=result.model_dump(mode="json"))

    status = telling(run, rank)
    if launched and status == 0:
        from trainer.training.runtime import leave_group

        leave_group()
    return status


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
    sys.exit(main())
