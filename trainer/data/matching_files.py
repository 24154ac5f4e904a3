"""The files that match a path or a pattern, in this machine's folders or on a remote file system."""

import os
import re
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from fnmatch import translate
from typing import Any, NamedTuple

from fsspec.utils import glob_translate

from trainer.common.errors import CorpusError
from trainer.data.raw_files import reading, unreadable
from trainer.store.remedies import credentials_explained
from trainer.store.remote_listing import files_at

MAGIC = re.compile(r"[*?\[]")
ANY_FOLDERS = "**"


class LocalFile(NamedTuple):
    """A file: its path as found and its path without links; `key` is its path below the pattern's fixed part."""

    path: str
    key: str
    real: str
    status: os.stat_result


def find_local(pattern: str) -> Iterator[LocalFile]:
    """The local files that match an absolute path or pattern. As in a shell, links are followed, and a name that begins
    with a dot matches only a part of the pattern that does too.

    Raises `CorpusError` for a folder that cannot be listed (fsspec would silently skip it), for a broken link, and for
    a name that is not UTF-8, and `OSError` for a path that cannot be looked up.
    """
    pattern = os.path.normpath(pattern)
    parts = pattern.split(os.sep)
    fixed = _count_fixed(parts)
    if fixed == len(parts) or os.path.isfile(pattern):  # a name may contain the characters of patterns
        if _is(stat.S_ISREG, pattern):
            yield LocalFile(pattern, os.path.basename(pattern), os.path.realpath(pattern), os.stat(pattern))
        _refuse_broken_link(pattern)
        return
    folder = os.sep.join(parts[:fixed])
    if _is(stat.S_ISDIR, folder or os.sep):
        for path, real in _below(folder, os.path.realpath(folder or os.sep), parts[fixed:], ()):
            try:
                status = os.stat(path)
            except OSError as error:
                _refuse_broken_link(path)
                raise unreadable(path, error) from error
            _require_utf8(path)
            yield LocalFile(path, path[len(folder) + 1 :], real, status)


def _refuse_broken_link(path: str) -> None:
    if os.path.islink(path) and not os.path.exists(path):
        raise CorpusError(
            f"{path} cannot be read: it is a link to {os.readlink(path)}, which leads nowhere; remove the link, or "
            "restore the file"
        )


def _is(kind: Callable[[int], bool], path: str) -> bool:
    """Whether a path leads to a file of a kind. Raises `OSError` if that cannot be looked up, as in a folder that this
    user may not enter; `os.path.isfile` takes that for a missing file.
    """
    try:
        return kind(os.stat(path).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False


def _count_fixed(parts: Sequence[str]) -> int:
    """The number of parts before the first one with a pattern."""
    return next((number for number, part in enumerate(parts) if MAGIC.search(part)), len(parts))


def _require_utf8(path: str) -> None:
    """Raise `CorpusError` for a name that cannot be stored in a record."""
    try:
        path.encode()
    except UnicodeEncodeError as error:
        shown = os.fsencode(path).decode(errors="backslashreplace")
        raise CorpusError(f"{shown} cannot be read: its name is not UTF-8; rename it") from error


def _below(
    folder: str, real: str, parts: Sequence[str], above: tuple[tuple[int, int], ...]
) -> Iterator[tuple[str, str]]:
    """The files below a folder that match the parts of a pattern, by their paths with and without links; `above` are
    the folders above it, to detect links that lead back to one.
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


def find_remote(fs: Any, pattern: str) -> dict[str, Any]:
    """What matches a path or a pattern of one of fsspec's remote file systems: its entries, by path.

    As `fs.glob`, which silently skips a folder that cannot be listed. Raises the file system's error for such a folder.
    """
    if "://" in pattern:  # a web address, in which a question mark has another meaning
        found: dict[str, Any] = fs.glob(pattern, detail=True)
        return found
    parts = pattern.split("/")
    fixed = _count_fixed(parts)
    if fixed == len(parts):
        with suppress(FileNotFoundError), credentials_explained():
            return {pattern: fs.info(pattern)}
        return {}
    matches = re.compile(glob_translate(pattern)).match
    entries = _listed(fs, "/".join(parts[:fixed]), parts[fixed:])
    # A bucket's console marks an empty folder by an empty object whose name ends in a slash.
    return {entry["name"]: entry for entry in entries if matches(entry["name"]) and not entry["name"].endswith("/")}


def _listed(fs: Any, folder: str, parts: Sequence[str]) -> Iterator[dict[str, Any]]:
    """The entries below a remote folder among which those are that match the parts of a pattern."""
    part, rest = parts[0], parts[1:]
    stem = MAGIC.split(part, maxsplit=1)[0]
    with suppress(FileNotFoundError), credentials_explained():
        if part == ANY_FOLDERS:
            yield from files_at(fs, folder)
            return
        if stem and "s3" in fs.protocol:  # lists only names that begin with it
            entries = fs.find(folder, maxdepth=1, withdirs=True, detail=True, prefix=stem).values()
        else:
            entries = fs.ls(folder, detail=True)
        matches = re.compile(glob_translate(part)).match
        for entry in sorted(entries, key=lambda each: str(each["name"])):
            if not rest:
                yield entry
            elif entry["type"] == "directory" and matches(entry["name"].rstrip("/").rpartition("/")[2]):
                yield from _listed(fs, entry["name"].rstrip("/"), rest)
