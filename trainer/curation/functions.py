"""Functions of the user's, as their files are that their verdicts are named after.

Which they are is read from import statements, and nothing is run for it, so that every process finds the same.

A process may load one long after the files were looked at, as a worker does, or have loaded it long before.
"""

import hashlib
import importlib
import sys
import sysconfig
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from trainer.common.errors import ConfigError
from trainer.common.imports import files_behind


def source_files(module: str) -> list[Path]:
    """The file of a loaded module, and those that it imports, directly or not, from its top package or from beside
    that.

    Of what is installed, what lies beside is other libraries, and does not count. A module without a file has none.
    """
    top = module.partition(".")[0]
    try:
        spec = find_spec(top)
    except ValueError:  # one that was made by a program
        spec = None
    if spec is None:
        return []
    places = spec.submodule_search_locations or ([spec.origin] if spec.has_location and spec.origin else [])
    library = Path(sysconfig.get_path("stdlib"))
    files: set[Path] = set()
    for folder in dict.fromkeys(Path(place).parent for place in places):
        installed = folder == library or folder.name in ("site-packages", "dist-packages")
        files.update(files_behind(module, folder, top if installed else None))
    return sorted(files)


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

    Raises `ConfigError` if there is no such function, or its files are others now: else their verdicts would be kept
    under the name of those that were looked at.
    """
    if _loaded.get(function, digest) != digest:  # Python is to load anew what comes from its files
        files = {str(path) for path in source_files(function.partition(":")[0])}
        for known, loaded in list(sys.modules.items()):
            if getattr(loaded, "__file__", None) in files:
                del sys.modules[known]
        importlib.invalidate_caches()
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
            f"data.curation.filters: the files of {function!r} are not those that were looked at: one has changed "
            "meanwhile, or this machine has others; start the command again, with the same files on every machine"
        )
    return found
