"""Ranks of which the last is killed while the first waits for it: `torchrun -m tests.trainer.training.killed_rank`."""

import os
import signal

from trainer.common.process import QuickEnd, on_rank
from trainer.common.stopping import install_signal_handlers
from trainer.training.rank_watchdog import CALL_SECONDS, explaining_lost_ranks
from trainer.training.runtime import start_runtime


@explaining_lost_ranks()
def work() -> None:
    runtime = start_runtime("fp32", "cpu")
    if runtime.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    runtime.wait_for_all()


if __name__ == "__main__":
    end = QuickEnd()
    install_signal_handlers(latest=CALL_SECONDS / 2)
    end(on_rank(work))
