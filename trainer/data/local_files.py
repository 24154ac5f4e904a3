"""The files of this machine that a pattern matches, as a shell has it: links are followed, and a name that begins with
a dot is only matched by a part of the pattern that does.

A folder that cannot be listed is an error: fsspec leaves it out, and a corpus would be smaller without a word.
"""

import os
import re
from collections.abc import Iterator, Sequence
from fnmatch import translate
from typing import NamedTuple

from trainer.data.raw_files import reading

MAGIC = re.compile(r"[*?\[]")
ANY_FOLDERS = "**"


class LocalFile(NamedTuple):
    """A file, by the path that was found, and by the one that it has without links; `key` is its path below the
    pattern's fixed part.
    """

    path: str
    key: str
    real: str
    status: os.stat_result


def find_local(pattern: str) -> Iterator[LocalFile]:
    """The files of an absolute path or pattern. Raises `CorpusError` for a folder that cannot be listed, or a link that
    leads nowhere.
    """
    pattern = os.path.normpath(pattern)
    if os.path.isfile(pattern):
        yield LocalFile(pattern, os.path.basename(pattern), os.path.realpath(pattern), os.stat(pattern))
        return
    parts = pattern.split(os.sep)
    fixed = next((number for number, part in enumerate(parts) if MAGIC.search(part)), len(parts))
    folder = os.sep.join(parts[:fixed])
    if fixed < len(parts) and os.path.isdir(folder or os.sep):
        for path, real in _below(folder, os.path.realpath(folder or os.sep), parts[fixed:], ()):
            with reading(path):
                status = os.stat(path)
            yield LocalFile(path, path[len(folder) + 1 :], real, status)


def _below(
    folder: str, real: str, parts: Sequence[str], above: tuple[tuple[int, int], ...]
) -> Iterator[tuple[str, str]]:
    """The files below a folder that the parts of a pattern lead to, by their paths with links and without; `above` are
    the folders that it is in, as a link may lead back to one.
    """
    part, rest = parts[0], parts[1:]
    deep = part == ANY_FOLDERS
    matches = re.compile(translate("*" if deep else part)).match
    if deep:
        status = os.stat(folder or os.sep)
        if (status.st_dev, status.st_ino) in above:
            return
        above = (*above, (status.st_dev, status.st_ino))
        if rest:
            yield from _below(folder, real, rest, ())
    with reading(folder), os.scandir(folder or os.sep) as listed:
        entries = sorted(listed, key=lambda entry: entry.name)
    for entry in entries:
        if not matches(entry.name) or (entry.name.startswith(".") and not part.startswith(".")):
            continue
        own = os.path.realpath(entry.path) if entry.is_symlink() else os.path.join(real, entry.name)
        if entry.is_dir():
            if deep or rest:
                yield from _below(entry.path, own, parts if deep else rest, above)
        elif not rest and (entry.is_file() or entry.is_symlink()):
            yield entry.path, own
