"""What Python files import, read from their import statements: nothing is run for it."""

import ast
from collections.abc import Iterator
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
    folder, found, wanted = path.parent, set[Path](), [path]
    while wanted:
        source = wanted.pop()
        found.add(source)
        package = ".".join([BESIDE, *source.relative_to(folder).parent.parts])
        for name in imports_of(source, package):
            place = folder.joinpath(*name.removeprefix(f"{BESIDE}.").split("."))
            above = [each for each in place.parents if each.is_relative_to(folder) and each != folder]
            files = [place.with_suffix(".py"), *(each / "__init__.py" for each in (place, *above))]
            wanted += [file for file in files if file.is_file() and file not in found and file not in wanted]
    return [path, *sorted(found - {path})]
