"""Where a stage runs: in a fork of a process that has loaded its libraries (forked_stages.py), or in a new process.

Both give the stage its request as standard input, this process's environment, folder, cores and group, tell it to stop
when this process ends, and know its exit status.
"""

import logging
import os
import subprocess
import sys
from glob import glob
from typing import IO

from tasks.forked_stages import CannotFork, ForkedStage, fitting_server
from trainer.common.errors import ConfigError
from trainer.common.stopping import blocked_stops
from trainer.pipelines.stage_table import MODULES

log = logging.getLogger(__name__)

CHOICE = "HEADRACE_STAGES"
"""The environment variable that may say `fork` or `spawn`. Without it, stages are forked where that is safe."""

ACCELERATORS = (
    "/dev/nvidia[0-9]*", "/dev/nvhost-gpu", "/dev/kfd", "/dev/dxg", "/dev/accel*", "/dev/vfio/[0-9]*",
    "/dev/davinci[0-9]*",
    "/dev/hl[0-9]*",
)  # fmt: skip
"""Their drivers do not survive a fork once they were asked for anything, which a library may do when it is loaded."""


def start_stage(name: str, request: IO[str], ranks: int, engine: str) -> "subprocess.Popen[str] | ForkedStage":
    """Start a stage, or the launcher of its ranks, which are processes of their own, with its request as standard
    input.

    Raises `ConfigError` for a choice that there is not, and `Preempted` if this process is asked to stop meanwhile.
    """
    if forks():
        module = MODULES[name] if ranks == 1 and engine == "local" else "trainer.pipelines.child"
        try:
            return ForkedStage(fitting_server(), module, request)
        except CannotFork as reason:
            log.warning("stage %s loads its libraries itself: %s", name, reason)
    with blocked_stops():
        return subprocess.Popen(
            [sys.executable, "-m", "trainer.pipelines.child"], stdin=request, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True, errors="replace",
        )  # fmt: skip


def load_early(name: str) -> None:
    """Begin to load a stage's libraries, if stages are forked: while this process loads its own."""
    if forks():
        fitting_server().ask(MODULES[name])


def forks() -> bool:
    """Whether stages are forked. Raises `ConfigError` for a choice that there is not."""
    choice = os.environ.get(CHOICE)
    if choice not in (None, "fork", "spawn"):
        raise ConfigError(f"the environment variable {CHOICE} is {choice!r}; set it to fork or spawn, or unset it")
    possible = _has_pidfds()
    if choice == "fork" and not possible:
        raise ConfigError(
            f"the environment variable {CHOICE} is 'fork', which needs Linux 5.3 with pidfd_open; unset it"
        )
    return choice == "fork" or (choice is None and possible and not any(map(glob, ACCELERATORS)))


def _has_pidfds() -> bool:
    """Whether this system has them, and lets this process have them, which some containers do not."""
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError):
        return False
    return True
