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
from importlib.machinery import (
    BYTECODE_SUFFIXES,
    EXTENSION_SUFFIXES,
    SOURCE_SUFFIXES,
    ExtensionFileLoader,
    FileFinder,
    ModuleSpec,
    SourceFileLoader,
    SourcelessFileLoader,
)
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from trainer.common.errors import ConfigError
from trainer.common.imports import imports_of

LOADERS = (
    (ExtensionFileLoader, EXTENSION_SUFFIXES), (SourceFileLoader, SOURCE_SUFFIXES),
    (SourcelessFileLoader, BYTECODE_SUFFIXES),
)  # fmt: skip


def source_files(module: str) -> list[Path]:
    """The file of a loaded module, and those that it imports, directly or not, from its top package or from beside
    that.

    Of what is installed, what lies beside is other libraries, and does not count. A module without a file has none.
    """
    modules = _Modules(module.partition(".")[0])
    files: set[Path] = set()
    wanted, seen = [module], set[str]()
    while wanted:
        name = wanted.pop()
        if name in seen:
            continue
        seen.add(name)
        if parent := name.rpartition(".")[0]:
            wanted.append(parent)
        spec = modules.find(name)
        if spec is not None and (path := _file(spec)) is not None:
            files.add(path)
            if path.suffix in SOURCE_SUFFIXES:
                wanted += imports_of(path, name if spec.submodule_search_locations is not None else parent)
    return sorted(files)


class _Modules:
    """The modules of a top package or plain module, and of the folder that it lies in, by name."""

    def __init__(self, top: str) -> None:
        try:
            spec = find_spec(top)
        except ValueError:  # one that was made by a program
            spec = None
        self._found: dict[str, ModuleSpec | None] = {top: spec}
        self._beside = _folders_beside(spec) if spec is not None else []

    def find(self, name: str) -> ModuleSpec | None:
        if name not in self._found:
            found = (FileFinder(folder, *LOADERS).find_spec(name) for folder in self._folders(name.rpartition(".")[0]))
            self._found[name] = next((spec for spec in found if spec is not None), None)
        return self._found[name]

    def _folders(self, package: str) -> list[str]:
        if not package:
            return self._beside
        spec = self.find(package)
        return list(spec.submodule_search_locations or ()) if spec is not None else []


def _folders_beside(spec: ModuleSpec) -> list[str]:
    """The folders that a top package or a plain module lies in, unless libraries are installed there."""
    own = spec.submodule_search_locations
    if own is None:
        own = [str(path)] if (path := _file(spec)) is not None else []
    folders = dict.fromkeys(Path(each).parent for each in own)
    library = Path(sysconfig.get_path("stdlib"))
    return [str(each) for each in folders if each != library and each.name not in ("site-packages", "dist-packages")]


def _file(spec: ModuleSpec) -> Path | None:
    path = Path(spec.origin) if spec.has_location and spec.origin else None
    return path if path is not None and path.is_file() else None


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
            f"data.curation.filters: the files of {function!r} are not those that were looked at: one has changed "
            "meanwhile, or this machine has others; start the command again, with the same files on every machine"
        )
    return found


def _forget(function: str) -> None:
    """Have Python load anew what comes from the function's files."""
    files = {str(path) for path in source_files(function.partition(":")[0])}
    for name, module in list(sys.modules.items()):
        if getattr(module, "__file__", None) in files:
            del sys.modules[name]
    importlib.invalidate_caches()
