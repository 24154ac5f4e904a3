"""Loads the user's filter functions and computes the digests of their source files.

The files are found by parsing import statements, without running any code, so every process finds the same ones.

A process may load a function long before or after its files were digested, so loading checks the digest again.
"""

import hashlib
import importlib
import os
import sys
import sysconfig
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from trainer.common.errors import ConfigError
from trainer.common.imports import files_behind


def source_files(module: str) -> list[Path]:
    """The file of a loaded module, and the files that it imports, directly or indirectly.

    Imports are followed within the module's top package and the modules beside it. Other libraries beside an
    installed package are ignored. Empty for a module without a file.
    """
    top = module.partition(".")[0]
    try:
        spec = find_spec(top)
    except ValueError:  # a module created at run time
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


class _FromSource(SourceFileLoader):
    """Compiles a module from its source. Python takes compiled code if the source's size and time are unchanged, and
    would then run another version than the digested one.
    """

    def path_stats(self, path: str) -> Mapping[str, Any]:
        raise OSError("its compiled code is not used")


class _ReadAnew(MetaPathFinder):
    """Finds the modules in some files as Python does, but loads them from their source."""

    def __init__(self) -> None:
        self.files = set[str]()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is None or not isinstance(spec.loader, SourceFileLoader) or str(spec.origin) not in self.files:
            return None
        spec.loader = _FromSource(fullname, str(spec.origin))
        return spec


_finder = _ReadAnew()
"""Stays installed, because a function may import modules when it is called."""

_loaded: dict[str, str] = {}
"""The digest of the files from which this process loaded each function."""


def digest_sources(function: str) -> str:
    """The digest of the current source files of `module:function`."""
    if "" not in sys.path:
        sys.path.append("")  # for functions beside the configuration: a console script does not search there
    files = source_files(function.partition(":")[0])
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in files)).hexdigest()


@cache
def load_function(function: str, digest: str) -> Callable[[str], Any]:
    """Load the function from the files with this digest; reload it if this process has loaded another version.

    Raises `ConfigError` if there is no such function, or if its files have changed: the verdicts would be stored under
    the digest of the old files.
    """
    files = {str(path) for path in source_files(function.partition(":")[0])}
    _finder.files |= {os.path.abspath(file) for file in files} | files
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
    if _loaded.get(function, digest) != digest:  # unload the old modules, so that Python reads the files again
        for known, loaded in list(sys.modules.items()):
            if getattr(loaded, "__file__", None) in files:
                del sys.modules[known]
        importlib.invalidate_caches()
    module, _, name = function.partition(":")
    try:
        found: Callable[[str], Any] = getattr(importlib.import_module(module), name)
    except (Exception, SystemExit) as error:  # importing the user's module may raise anything, as a script may exit
        problem = f"{type(error).__name__}: {error}"
        raise ConfigError(f"data.curation.filters: function {function!r} cannot be loaded: {problem}") from error
    if not callable(found):
        raise ConfigError(f"data.curation.filters: {function!r} is not callable")
    _loaded[function] = digest_sources(function)
    if _loaded[function] != digest:
        raise ConfigError(
            f"data.curation.filters: the source files of {function!r} have changed since the command started, or "
            "differ on this machine; start the command again, with the same files on every machine"
        )
    return found
