"""Imports of Python files, read from their import statements without running them."""

import ast
from collections.abc import Iterator
from functools import cache, partial
from importlib.machinery import all_suffixes
from importlib.util import resolve_name
from pathlib import Path

BESIDE = "beside"
"""Stand-in name for the package of a folder's files."""


def imports_of(path: Path, package: str) -> Iterator[str]:
    """Yield the names that the import statements anywhere in a package's file may load."""
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError, RecursionError):  # not importable, for instance written for another Python version
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            try:
                base = resolve_name("." * node.level + (node.module or ""), package)
            except ImportError:  # beyond the top package: nothing is imported
                continue
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def with_imports(path: Path) -> list[Path]:
    """A file, followed by the files in its folder that it imports, directly or indirectly, sorted by name."""
    return [path, *sorted(_followed([path], path.parent) - {path})]


def files_behind(module: str, folder: Path, within: str | None = None) -> list[Path]:
    """The files of a folder that importing a module there loads, directly or indirectly; optionally only those `within`
    one top package.
    """
    return sorted(_followed(_files_of(module, folder), folder, within))


def _followed(files: list[Path], folder: Path, within: str | None = None) -> set[Path]:
    looked = cache(partial(_files_of, folder=folder))
    found, wanted = set[Path](), files
    while wanted:
        source = wanted.pop()
        found.add(source)
        package = ".".join([BESIDE, *source.relative_to(folder).parent.parts])
        for name in (each.removeprefix(f"{BESIDE}.") for each in imports_of(source, package)):
            if within in (None, name.partition(".")[0]):
                wanted += [file for file in looked(name) if file not in found and file not in wanted]
    return found


def _files_of(module: str, folder: Path) -> list[Path]:
    """The files of a folder that Python loads for a module: its own, and the `__init__` of the packages above it."""
    place = folder.joinpath(*module.split("."))
    packages = [place, *(each for each in place.parents if each.is_relative_to(folder) and each != folder)]
    stems = [str(place), *(str(each / "__init__") for each in packages)]
    return [file for stem in stems for suffix in all_suffixes() if (file := Path(stem + suffix)).is_file()]
