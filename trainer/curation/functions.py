"""Functions of the user's, as their files are that their verdicts are named after.

A process may load one long after the files were looked at, as a worker does, or have loaded it long before.
"""

import hashlib
import importlib
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

from trainer.common.errors import ConfigError
from trainer.curation.function_sources import source_files

_loaded: dict[str, str] = {}
"""The digest by which this process has loaded each function."""


def digest_sources(function: str) -> str:
    """The digest of the files that `module:function` comes from, as they are now."""
    if "" not in sys.path:
        sys.path.append("")  # functions beside one's configuration, which a console script does not see
    files = source_files(function.partition(":")[0])
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in files)).hexdigest()


@cache
def load_function(function: str, digest: str) -> Callable[[str], Any]:
    """The function of the files with this digest. What this process has loaded of other files of it is loaded anew.

    Raises `ConfigError` if there is no such function, or its files are others now: else their verdicts would be kept under the
    name of those that were looked at.
    """
    if _loaded.get(function, digest) != digest:
        _forget(function)
    module, _, name = function.partition(":")
    try:
        found: Callable[[str], Any] = getattr(importlib.import_module(module), name)
    except Exception as error:  # the module is the user's, and may raise anything
        problem = f"{type(error).__name__}: {error}"
        raise ConfigError(f"data.curation.filters: there is no function {function!r}: {problem}") from error
    if not callable(found):
        raise ConfigError(f"data.curation.filters: {function!r} is no function")
    _loaded[function] = digest_sources(function)
    if _loaded[function] != digest:
        raise ConfigError(
            f"data.curation.filters: the files of {function!r} are not those that were looked at: one has changed meanwhile, "
            "or this machine has others; start the command again, with the same files on every machine"
        )
    return found


def _forget(function: str) -> None:
    """Have Python load anew what comes from the function's files."""
    files = {str(path) for path in source_files(function.partition(":")[0])}
    for name, module in list(sys.modules.items()):
        if getattr(module, "__file__", None) in files:
            del sys.modules[name]
    importlib.invalidate_caches()
