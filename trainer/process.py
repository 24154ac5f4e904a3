"""Small facts about processes: dying with the parent, and how many cores there are to use."""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1
M_MMAP_THRESHOLD = -3


def die_with_parent(parent: int, signum: signal.Signals = signal.SIGTERM) -> None:
    """Have the kernel send this process a signal when its parent ends, so that a killed pipeline leaves no orphan.

    `parent` is the process id of the parent that this process expects: if it is gone already, exit at once. Linux only;
    elsewhere nothing happens.
    """
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signum)
    if os.getppid() != parent:
        sys.exit(128 + signum)


def return_large_buffers() -> None:
    """Have glibc give freed buffers of 128 KiB and more back to the system at once.

    Left to itself it raises that bound with every large buffer freed, and then keeps, in fragments, several times what a
    process uses that reads and encodes a few MiB at a time.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, 128 * 1024)


def usable_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
