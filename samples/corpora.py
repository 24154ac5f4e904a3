"""Write small corpora of real text from the Python installation as ordinary raw files.

    python -m samples.corpora data/raw

code/        source files of the standard library
docstrings/  one JSON object for each docstring of those source files that are not in code/
topics/      the help texts of pydoc in one file, with separator lines between them
planted/     docstrings, with duplicates and other documents that curation should find: see samples/planted.py
"""

import ast
import shutil
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from pydoc_data.topics import topics

from samples.planted import as_lines, plant

SEPARATOR = "%%"
SKIPPED_FOLDERS = {"site-packages", "test", "tests", "idlelib", "lib2to3", "__pycache__", "turtledemo", "encodings"}


def main(arguments: list[str]) -> int:
    """Write the corpora into a folder; files with the same content are not rewritten."""
    if len(arguments) != 1 or arguments[0].startswith("-"):
        print("usage: python -m samples.corpora FOLDER", file=sys.stderr)
        return 2
    folder = Path(arguments[0])
    modules = dict(standard_modules())
    documented = {name: source for number, (name, source) in enumerate(modules.items()) if number % 3 == 0}
    for name in modules.keys() - documented.keys():
        write(folder / "code" / name, modules[name])
    docstrings = list(all_docstrings(documented))
    write(folder / "docstrings" / "docstrings.jsonl", as_lines([{"text": text} for text in docstrings]))
    texts = f"\n{SEPARATOR}\n".join(topics[name].strip() for name in sorted(topics))
    write(folder / "topics" / "topics.txt", texts + "\n")
    planted, evaluation = plant(list(all_docstrings(modules)))
    write(folder / "planted" / "planted.jsonl", as_lines(planted))
    write(folder / "planted" / "evaluation.txt", "".join(line + "\n" for line in evaluation))
    for name in ("code", "docstrings", "planted", "topics"):
        files = [path for path in (folder / name).rglob("*") if path.is_file()]
        print(f"{folder / name}: {len(files)} files, {sum(path.stat().st_size for path in files) / 2**20:.1f} MiB")
    return 0


def standard_modules() -> Iterator[tuple[str, str]]:
    """Relative path and source of the standard library's modules, except tests and tools."""
    root = Path(sysconfig.get_path("stdlib"))
    for path in sorted(root.rglob("*.py")):
        relative = path.relative_to(root)
        if SKIPPED_FOLDERS.isdisjoint(relative.parts) and relative.parts[0] != "pydoc_data":
            try:
                yield str(relative), path.read_text(encoding="utf-8")
            except UnicodeDecodeError:
                continue


def all_docstrings(modules: dict[str, str]) -> Iterator[str]:
    """The modules' docstrings in order, without repetitions."""
    seen: set[str] = set()
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for source in modules.values():
        for node in ast.walk(ast.parse(source)):
            text = ast.get_docstring(node) if isinstance(node, documented) else None
            if text and text not in seen:
                seen.add(text)
                yield text


def write(path: Path, text: str) -> None:
    """Write a file, unless it already holds this text."""
    data = text.encode()
    if path.is_file() and path.read_bytes() == data:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_bytes(data)
    shutil.move(partial, path)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
