"""One stage in a process of its own: `python -m trainer.child REQUEST.json`.

The request names the stage, its arguments, the number of ranks and the process that waits for it. Progress, log lines, the
error and the result go to standard output, one JSON object a line. The process ends when the one that waits for it ends.
"""

import json
import logging
import os
import sys
import traceback
from pathlib import Path
from typing import Any

from trainer.errors import EXIT_BAD_INPUT, EXIT_PREEMPTED, PipelineError, Preempted
from trainer.logs import AsEvents, start_logging
from trainer.process import die_with_parent
from trainer.progress import as_events, emit, silent
from trainer.stopping import interruptible


def main(arguments: list[str]) -> int:
    """Run the requested stage; returns the exit status."""
    request = json.loads(Path(arguments[0]).read_text(encoding="utf-8"))
    launched = "RANK" in os.environ
    die_with_parent(os.getppid() if launched else request["parent"])
    if request["ranks"] > 1 and not launched:
        return launch(request["ranks"], arguments[0])
    rank = int(os.environ.get("RANK", "0"))
    start_logging(logging.INFO if rank == 0 else logging.WARNING, AsEvents(rank if launched else None))
    status = run(request["stage"], request["arguments"], rank)
    if launched and status == 0:
        from trainer.runtime import leave_group

        leave_group()
    return status


def launch(ranks: int, request: str) -> int:
    """Start the ranks with torchrun, in this process."""
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import main as torchrun

    os.environ.setdefault("OMP_NUM_THREADS", "1")  # as torchrun does, with a warning; the ranks set their threads themselves
    try:
        torchrun(["--standalone", "--nproc-per-node", str(ranks), "-m", "trainer.child", request])
    except ChildFailedError as error:
        return max(failure.exitcode for failure in error.failures.values()) or 1
    except SignalException:
        return EXIT_PREEMPTED
    return 0


def run(name: str, arguments: dict[str, Any], rank: int) -> int:
    """Run a stage and report what came of it."""
    from trainer.stages import stage

    try:
        with interruptible():
            result = stage(name)(**arguments, progress=as_events() if rank == 0 else silent())
    except Preempted as stop:
        if rank == 0:
            emit(sys.stdout, "log", level="WARNING", logger=__name__, message=str(stop))
        return EXIT_PREEMPTED
    except PipelineError as error:
        emit(sys.stdout, "error", kind=type(error).__name__, message=str(error), rank=rank)
        return EXIT_BAD_INPUT
    except Exception as error:
        emit(sys.stdout, "error", kind=type(error).__name__, message=str(error), rank=rank, traceback=traceback.format_exc())
        return 1
    if rank == 0:
        emit(sys.stdout, "result", value=result.model_dump(mode="json"))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
