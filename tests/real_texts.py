"""Real text that every machine has: sources, packages' documentation, manual pages in many languages."""

import ast
import gzip
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path

LARGEST, OF_EACH = 50_000, 600
SOURCES = "*.py"
NOTES = ("METADATA", "*.md", "*.rst", "*.txt", "LICEN[CS]E*", "NOTICE*", "COPYING*")


def real_texts(of_each: int = OF_EACH) -> Iterator[tuple[str, str]]:
    """Texts with their origins; about `most` files of each sort, spread evenly over all of them."""
    library = [path for path in Path(sysconfig.get_path("stdlib")).rglob(SOURCES) if "site-packages" not in path.parts]
    packages = [Path(folder) for folder in sys.path if folder.endswith("site-packages")]
    manual, documents = Path("/usr/share/man"), Path("/usr/share/doc")
    yield from texts_of("standard library", library, of_each)
    yield from (("docstrings", text) for text in docstrings_of(spread(library, of_each)) if len(text) <= LARGEST)
    yield from texts_of("site-packages' sources", found_in(packages, SOURCES), of_each)
    yield from texts_of("site-packages' documents", found_in(packages, *NOTES), of_each)
    yield from texts_of("manual pages", manual.glob("man[1-8]/*.gz"), of_each)
    yield from texts_of("manual pages of other languages", manual.glob("*/man[1-8]/*.gz"), of_each)
    yield from texts_of("packages' documents", documents.rglob("*"), of_each)


def found_in(folders: Iterable[Path], *names: str) -> Iterator[Path]:
    """Files in folders and their subfolders that match the names."""
    return (path for folder in folders for name in names for path in folder.rglob(name))


def spread(paths: Iterable[Path], of_each: int) -> list[Path]:
    """A number of these files, sorted by name."""
    files = sorted({path for path in paths if path.is_file()})
    return files[:: max(len(files) // of_each, 1)]


def docstrings_of(sources: Iterable[Path]) -> Iterator[str]:
    """Each module's docstrings as one text."""
    for path in sources:
        try:
            nodes = list(ast.walk(ast.parse(path.read_bytes())))
        except (SyntaxError, ValueError):
            continue
        documented = (each for each in nodes if isinstance(each, ast.Module | ast.ClassDef | ast.FunctionDef))
        if text := "\n\n".join(filter(None, map(ast.get_docstring, documented))):
            yield text


def texts_of(origin: str, paths: Iterable[Path], of_each: int) -> Iterator[tuple[str, str]]:
    """The texts of files that are not too large."""
    for path in spread(paths, of_each):
        try:
            data = path.read_bytes()
            text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode()
        except (OSError, EOFError, UnicodeDecodeError):
            continue
        if 0 < len(text) <= LARGEST:
            yield origin, text
