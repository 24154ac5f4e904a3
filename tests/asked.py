"""A process that gets a stop signal when it imports a chosen module.

    main([IMPORTED, "--", MODULE, ARGUMENTS...])

The process sends the signal to itself, and handles it before the import continues: an exception would be caught by code
that tries the import.
"""

import importlib
import os
import signal
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


class Asking(MetaPathFinder):
    """Finds no module, and sends the signal when it is first asked for the chosen one."""

    def __init__(self, wanted: str) -> None:
        self._wanted: str | None = wanted

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name == self._wanted:
            self._wanted = None
            os.kill(os.getpid(), signal.SIGTERM)
        return None


def main(arguments: list[str]) -> int:
    """Watch for the import and run the module's `main`."""
    wanted, _, module, *rest = arguments
    sys.meta_path.insert(0, Asking(wanted))
    status: int = importlib.import_module(module).main(rest)
    return status
