"""A process to whom the disk is full for a while: `main([PART, TIMES, "--", MODULE, ARGUMENTS...])`.

So many times it is refused to put a file in place whose name has that part.
"""

import errno
import importlib
import os
from pathlib import Path
from typing import Any


def main(arguments: list[str]) -> int:
    """Refuse, and run the module's `main`."""
    part, times, _, module, *theirs = arguments
    left, replace = [None] * int(times), os.replace

    def refuse(source: Any, target: Any) -> None:
        if part in Path(target).name and left:
            left.pop()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(target))
        replace(source, target)

    os.replace = refuse
    status: int = importlib.import_module(module).main(theirs)
    return status
