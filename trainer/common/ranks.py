"""A command's work on one rank of several, or alone: its exit status, and its error with the rank that it is of."""

import os
import sys
import traceback
from collections.abc import Callable

from trainer.common.errors import EXIT_PREEMPTED, FirstRankFailed, PipelineError, Preempted
from trainer.common.outages import exit_status
from trainer.common.stopping import check_stop, stoppable


def own_rank() -> int | None:
    """This process's rank, if a launcher started several."""
    rank = os.environ.get("RANK", "")
    return int(rank) if rank and int(os.environ.get("WORLD_SIZE", "1")) > 1 else None


def on_rank(work: Callable[[], None]) -> int:
    """Do a command's work. Returns 0, 2 on bad input, 75 if it can be continued, 1 on any other error; all tell why."""
    try:
        with stoppable():
            check_stop()
            work()
    except Preempted as stop:
        _tell(str(stop))
        return EXIT_PREEMPTED
    except FirstRankFailed as error:
        return exit_status(error)
    except Exception as error:
        _tell(f"{type(error).__name__}: {error}" if isinstance(error, PipelineError) else traceback.format_exc().rstrip())
        return exit_status(error)
    return 0


def _tell(message: str) -> None:
    """Write a message at once, so that those of several ranks do not mix."""
    rank = own_rank()
    sys.stderr.write(f"{'' if rank is None else f'[rank {rank}] '}{message}\n")
    sys.stderr.flush()
