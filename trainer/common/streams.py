"""Standard streams of a process that was started without some of them, as some schedulers do and `2>&-` in a shell."""

import os
import sys
from contextlib import suppress


def open_closed_streams() -> None:
    """Connect closed standard streams to /dev/null; call it before anything else opens a file.

    Otherwise the next opened file, such as one of the store, takes the number of a closed stream, and what a library or
    a child process writes to that stream is written into the file.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            with suppress(OSError):
                os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # takes the lowest free number: this one
        if getattr(sys, name) is None:  # Python sets this for a stream that was closed
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 - for the whole process
