"""Loops over the characters of many texts, compiled to machine code when first called, and cached for later processes.

    HEADRACE_CACHE/compiled/0123456789abcdef/   code compiled from these sources, by this compiler, for this processor

The folder's name is a digest of these inputs, so machines of several kinds may share a cache, and changed sources get a
new folder. If a folder is lost or not writable, or other users can change it, every process that calls the loops
compiles them, which takes seconds.
"""

import hashlib
import logging
import os
import pickle
import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
import numpy as np
from llvmlite import binding
from numba.core.caching import FunctionCache
from numpy.typing import NDArray

from trainer.curation.characters import (
    ALONE,
    APOSTROPHE,
    HYPHEN,
    LETTER,
    LINE_END,
    MARK,
    NUMBER,
    OTHER,
    SEVERAL,
    SPACE,
    UNDERSCORE,
    Hashes,
    Lines,
    NormalizedWords,
    Points,
    Positions,
    Spelling,
    Words,
)
from trainer.store.checked_files import FOLDER, locked, machine_cache

logger = logging.getLogger(__name__)

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """The function as machine code; it releases the GIL."""
    folder, settings = _folder(), cast(Any, numba.config)
    machine_code: Any = numba.njit(nogil=True)(function)
    if folder is not None:
        configured, settings.CACHE_DIR = settings.CACHE_DIR, str(folder)  # read when the cache is created
        try:
            machine_code._cache = _Locked(function, folder)  # as njit(cache=True) would, with its own class
        finally:
            settings.CACHE_DIR = configured
    return cast(Function, machine_code)


class _Locked(FunctionCache):
    """A function's compiled code on disk, which no process reads while another writes it.

    numba writes the index of a function's files before the files, without a lock: of two processes that compile it for
    different types at once, one would later be given the other's code.
    """

    def __init__(self, function: Callable[..., Any], folder: Path) -> None:
        super().__init__(function)  # type: ignore[no-untyped-call]
        self._lock = folder / "lock"

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        with locked(self._lock, shared=True):
            return super().load_overload(sig, target_context)  # type: ignore[no-untyped-call]

    def save_overload(self, sig: Any, data: Any) -> None:
        try:
            with locked(self._lock):
                super().save_overload(sig, data)  # type: ignore[no-untyped-call]
        except OSError as error:  # such as a full disk; the function is compiled
            _warn(self._lock.parent, error.strerror)


@cache
def _warn(folder: Path, reason: str | None) -> None:
    """Warn, once per process, that compiled code cannot be stored."""
    logger.warning(
        "compiled code cannot be stored in %s (%s), so every process compiles it again, which takes seconds; set %s to "
        "a folder of your own on a disk with free space", folder, reason, FOLDER,
    )  # fmt: skip


@cache
def _folder() -> Path | None:
    """The folder of compiled code; None if it is not writable, or other users can change it."""
    digest = hashlib.sha256(f"{numba.__version__}\n{binding.get_host_cpu_name()}\n".encode())
    digest.update(binding.get_host_cpu_features().flatten().encode())
    for source in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(source.read_bytes())
    folder = machine_cache() / "compiled" / digest.hexdigest()[:16]
    try:
        for each in (folder.parent, folder):
            each.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as own:
            user = os.fstat(own.fileno()).st_uid
        states = [each.stat() for each in (folder, folder.parent)]
    except OSError as error:
        _warn(folder, error.strerror)
        return None
    if any(state.st_uid != user or state.st_mode & 0o022 for state in states):  # loading the code unpickles it
        _warn(folder, "other users can change this folder")
        return None
    for path in folder.rglob("*.nb?"):  # remove files that a power failure left empty, zeroed or cut off
        with suppress(OSError):
            raw = path.read_bytes()
            if not (raw.startswith(pickle.PROTO) and raw.endswith(pickle.STOP)):
                path.unlink()
    return folder


DOT = ord(".")
START, FACTOR = np.uint64(0xCBF29CE484222325), np.uint64(0x9E3779B97F4A7C15)


@compiled
def _mix(value: np.uint64) -> np.uint64:
    """Make every bit depend on all others: the finalizer of SplitMix64."""
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


@compiled
def find_words(points: Points, starts: Positions, kinds: NDArray[np.uint8]) -> Words:
    """The runs of characters of all texts that are not white space."""
    word_starts = np.zeros(len(starts), np.int64)
    for text in range(len(starts) - 1):
        count, is_space = word_starts[text], True
        for at in range(starts[text], starts[text + 1]):
            was_space, is_space = is_space, kinds[at] < OTHER
            count += was_space and not is_space
        word_starts[text + 1] = count
    total = word_starts[-1]
    first, end = np.empty(total, np.int64), np.empty(total, np.int64)
    hashes, symbol = np.empty(total, np.uint64), np.empty(total, np.bool_)
    for text in range(len(starts) - 1):
        at, stop = starts[text], starts[text + 1]
        for word in range(word_starts[text], word_starts[text + 1]):
            while kinds[at] < OTHER:
                at += 1
            own, says = START, False
            first[word] = at
            while at < stop and kinds[at] >= OTHER:
                own = (own ^ np.uint64(points[at])) * FACTOR
                says |= kinds[at] >= NUMBER
                at += 1
            end[word], hashes[word], symbol[word] = at, _mix(own), not says
    return Words(first, end, hashes, symbol, word_starts)


@compiled
def find_normalized_words(points: Points, starts: Positions, spelling: Spelling) -> NormalizedWords:
    """The words of all texts that have a letter, a number or a mark."""
    kinds, folded = spelling.kinds, spelling.folded
    most = _most_normalized_words(points, starts, kinds)
    first, end = np.empty(most, np.int64), np.empty(most, np.int64)
    hashes, alone = np.empty(most, np.uint64), np.empty(most, np.bool_)
    word_starts = np.zeros(len(starts), np.int64)
    count = 0
    for text in range(len(starts) - 1):
        at, stop = starts[text], starts[text + 1]
        while at < stop:
            kind = kinds[points[at]]
            if kind < UNDERSCORE:
                at += 1
                continue
            own, says, is_alone = START, False, kind == ALONE
            first[count], alone[count] = at, is_alone
            while True:
                says |= kind >= NUMBER
                point = np.uint64(folded[points[at]])
                if point >= SEVERAL:
                    own = _add_several(own, int(point) - SEVERAL, spelling)
                elif point:
                    own = (own ^ point) * FACTOR
                at += 1
                following = kinds[points[at]] if at < stop else np.uint8(SPACE)
                if following <= OTHER:
                    break
                if is_alone or not UNDERSCORE <= following < ALONE:
                    on = _next_of_word(points, kinds, at, stop, kind, is_alone)
                    if on < 0:
                        break
                    at, following = on, kinds[points[on]]
                kind = following
            end[count], hashes[count] = at, _mix(own)
            count += says
        word_starts[text + 1] = count
    return NormalizedWords(first[:count], end[:count], hashes[:count], alone[:count], word_starts)


@compiled
def _most_normalized_words(points: Points, starts: Positions, kinds: NDArray[np.uint8]) -> int:
    """An upper bound for the number of words of all texts."""
    most = 0
    for text in range(len(starts) - 1):
        before = np.uint8(SPACE)
        for at in range(starts[text], starts[text + 1]):
            kind = kinds[points[at]]
            if kind >= UNDERSCORE and (before < UNDERSCORE or before in (MARK, ALONE) or kind == ALONE):
                most += 1
            before = kind
    return most


@compiled
def _add_several(own: np.uint64, number: int, spelling: Spelling) -> np.uint64:
    """The hash extended by the characters that one character is folded to."""
    for at in range(spelling.starts[number], spelling.starts[number + 1]):
        own = (own ^ np.uint64(spelling.several[at])) * FACTOR
    return own


@compiled
def _next_of_word(points: Points, kinds: NDArray[np.uint8], at: int, stop: int, kind: int, is_alone: bool) -> int:
    """Where a word continues after a character of this kind and a special one; -1 if it ends here."""
    following = kinds[points[at]]
    if is_alone or following == ALONE:
        return at if following == MARK else -1
    if kind >= MARK and following == APOSTROPHE:
        return at if at + 1 < stop and kinds[points[at + 1]] == LETTER else -1
    if kind >= MARK and following == HYPHEN:
        return _behind_hyphen(points, kinds, at + 1, stop)
    return -1


@compiled
def _behind_hyphen(points: Points, kinds: NDArray[np.uint8], at: int, stop: int) -> int:
    """Where a word continues after a hyphen, also across a line end; -1 if no letter follows."""
    while at < stop and kinds[points[at]] == SPACE:
        at += 1
    if at < stop and kinds[points[at]] == LINE_END:
        at = _behind_line_end(points, at, stop)
        while at < stop and kinds[points[at]] == SPACE:
            at += 1
        return at if at < stop and kinds[points[at]] == LETTER else -1
    return at if at < stop and kinds[points[at]] == LETTER and kinds[points[at - 1]] == HYPHEN else -1


@compiled
def _end_of_line(kinds: NDArray[np.uint8], at: int, stop: int) -> int:
    """The end of the text of the line that contains `at`."""
    while at < stop and kinds[at] != LINE_END:
        at += 1
    return at


@compiled
def _behind_line_end(points: Points, at: int, stop: int) -> int:
    """The start of the next line, or the text's end."""
    if at + 1 < stop and points[at] == 13 and points[at + 1] == 10:  # \r\n ends one line
        return at + 2
    return min(at + 1, stop)


@compiled
def find_lines(points: Points, starts: Positions, kinds: NDArray[np.uint8]) -> Lines:
    """The lines of all texts."""
    line_starts = np.zeros(len(starts), np.int64)
    for text in range(len(starts) - 1):
        at, stop, count = starts[text], starts[text + 1], line_starts[text]
        while at < stop:
            at = _behind_line_end(points, _end_of_line(kinds, at, stop), stop)
            count += 1
        line_starts[text + 1] = count
    total = line_starts[-1]
    first, end, hashes = np.empty(total, np.int64), np.empty(total, np.int64), np.empty(total, np.uint64)
    for text in range(len(starts) - 1):
        at, stop = starts[text], starts[text + 1]
        for line in range(line_starts[text], line_starts[text + 1]):
            first[line], end[line] = at, _end_of_line(kinds, at, stop)
            own = START
            for at in range(first[line], end[line]):
                own = (own ^ np.uint64(points[at])) * FACTOR
            hashes[line] = _mix(own)
            at = _behind_line_end(points, end[line], stop)
    return Lines(first, end, hashes, line_starts)


@compiled
def without_space(is_space: NDArray[np.bool_], first: int, end: int) -> tuple[int, int]:
    """The range of characters without leading and trailing white space."""
    while first < end and is_space[first]:
        first += 1
    while first < end and is_space[end - 1]:
        end -= 1
    return first, end


@compiled
def ends_with_dots(points: Points, first: int, end: int) -> bool:
    """Whether the last three characters are dots."""
    return end - first >= 3 and points[end - 1] == DOT and points[end - 2] == DOT and points[end - 3] == DOT


@compiled
def find_shingles(folded: Hashes, word_starts: Positions, n: int, starts: Positions, hashes: Hashes) -> None:
    """Hash words w1 .. wn to w1 * FACTOR^(n - 1) + ... + wn, mixed; written to `hashes`."""
    leaving = np.uint64(1)
    for _ in range(n):
        leaving *= FACTOR
    for text in range(len(word_starts) - 1):
        shingle, total = starts[text], np.uint64(0)
        for word in range(word_starts[text], word_starts[text + 1]):
            total = total * FACTOR + folded[word]
            behind = word - n
            if behind >= word_starts[text]:
                total -= folded[behind] * leaving
            if behind + 1 >= word_starts[text]:
                hashes[shingle] = _mix(total)
                shingle += 1
        if shingle < starts[text + 1]:
            hashes[shingle] = _mix(total)


@compiled
def among(hashes: Hashes, wanted: Hashes, filled: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Whether each hash is in `wanted`, which is sorted; `filled` is the table that `fill` returned for it."""
    found = np.zeros(len(hashes), np.bool_)
    shift = np.uint64(64 - _bits(len(filled)))
    for at in range(len(hashes)):
        if filled[hashes[at] >> shift]:
            place = np.searchsorted(wanted, hashes[at])
            found[at] = place < len(wanted) and wanted[place] == hashes[at]
    return found


@compiled
def fill(wanted: Hashes, size: int) -> NDArray[np.bool_]:
    """A table of `size`, a power of two, of the leading bits of `wanted`: it rejects most other hashes quickly."""
    filled = np.zeros(size, np.bool_)
    shift = np.uint64(64 - _bits(size))
    for each in wanted:
        filled[each >> shift] = True
    return filled


@compiled
def _bits(size: int) -> int:
    bits = 0
    while 1 << bits < size:
        bits += 1
    return bits
