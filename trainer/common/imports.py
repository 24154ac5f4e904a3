"""What Python files import, read from their import statements: nothing is run for it."""

import ast
from collections.abc import Iterator
from functools import cache, partial
from importlib.machinery import all_suffixes
from importlib.util import resolve_name
from pathlib import Path

BESIDE = "beside"
"""The package that a folder's files are taken to be of, whatever it is called."""


def imports_of(path: Path, package: str) -> Iterator[str]:
    """The names of what the import statements of a package's file may load, wherever they stand in it."""
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError, RecursionError):  # not loaded: it is of another version of Python, for instance
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            try:
                base = resolve_name("." * node.level + (node.module or ""), package)
            except ImportError:  # beyond the top package, where nothing is loaded from
                continue
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def with_imports(path: Path) -> list[Path]:
    """A file, and after it, by name, those of its folder that it imports, directly or not, by relative or plain
    names.
    """
    return [path, *sorted(_followed([path], path.parent) - {path})]


def files_behind(module: str, folder: Path, within: str | None = None) -> list[Path]:
    """The files of a folder that importing a module there loads, directly or not: all, or those `within` one top
    package.
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
    """The files of a folder that Python loads a module from: the module's own, and those of the packages above it."""
    place = folder.joinpath(*module.split("."))
    packages = [place, *(each for each in place.parents if each.is_relative_to(folder) and each != folder)]
    stems = [str(place), *(str(each / "__init__") for each in packages)]
    return [file for stem in stems for suffix in all_suffixes() if (file := Path(stem + suffix)).is_file()]
