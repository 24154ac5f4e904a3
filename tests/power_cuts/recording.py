"""Record what a process and its workers do to a folder, event by event, as the disk sees it.

    main([FOLDER, NOTES, BUG, "--", MODULE, ARGUMENTS...])

An event is an operation that changes names (replace, rename, link or remove a file, create or remove a folder), a sync,
or a call of the store that begins or returns; a caller relies on a call that has returned. Each event is recorded with
the folder's whole content after it, which includes files that libraries write. Contents are stored beside the notes, by
digest. Syncs are recorded but not executed, because nothing here must survive a real power cut.
"""

import fcntl
import hashlib
import importlib
import json
import os
import stat
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import Any, NamedTuple

from tests import ROOT

FOLDER = "folder"
"""The digest recorded for a folder."""

OPERATIONS = ("replace", "rename", "link", "unlink", "remove", "mkdir", "rmdir")
CALLS = {"put": 1, "put_folder": 1, "copy": 1, "create": 1, "swap": 1, "rename": 1, "delete": 0}
"""Methods of a local store's files that change it, with the index of the key among their arguments."""

SETTLED = 0.1
"""Seconds after which a file's times identify its last change; within one tick of the clock, it may change twice."""

BEGIN = "begin"
"""The first event: everything that exists then is durable."""

NOTES, CONTENTS = "events.jsonl", "contents"


class Event(NamedTuple):
    """The operation, the folder's inode, and the folder's tree after it: by path, inode and content digest."""

    what: str
    root: int
    tree: dict[str, tuple[int, str]]
    synced: int | None = None
    begins: tuple[str, str, str] | None = None
    """A call that begins: its name, its key, and the source key of a rename."""
    done: tuple[str, str, str] | None = None
    """A call that has returned."""


def read(notes: Path) -> list[Event]:
    """All events in order."""
    found = []
    with open(notes / NOTES, encoding="utf-8") as file:
        for line in file:
            values = json.loads(line)
            values["tree"] = {path: tuple(entry) for path, entry in values["tree"].items()}
            values |= {name: tuple(values[name]) for name in ("begins", "done") if name in values}
            found.append(Event(**values))
    return found


class Recorder:
    """Wraps operations that change names, syncs, and the store's calls that change it."""

    def __init__(self, folder: str, notes: str) -> None:
        self._folder, self._notes, self._known = folder, Path(notes), dict[tuple[int, int, int], str]()
        self._within = threading.local()
        (self._notes / CONTENTS).mkdir(parents=True, exist_ok=True)

    def arm(self, begin: bool = False) -> None:
        from trainer.store.local import LocalFiles

        if begin:
            self._note(BEGIN)
        for name in OPERATIONS:
            setattr(os, name, self._after(getattr(os, name), name))
        os.fsync = self._sync
        for name, place in CALLS.items():
            setattr(LocalFiles, name, self._call(getattr(LocalFiles, name), place))

    def _after(self, operation: Callable[..., Any], name: str) -> Callable[..., Any]:
        @wraps(operation)
        def change(*arguments: Any, **options: Any) -> Any:
            with open(self._notes / "turn", "a") as turn:
                fcntl.flock(turn, fcntl.LOCK_EX)
                done = operation(*arguments, **options)
                self._note(f"{name} {' '.join(map(str, arguments))}")
            return done

        return change

    def _sync(self, descriptor: int) -> None:
        self._note_alone("sync", synced=os.fstat(descriptor).st_ino)

    def _call(self, method: Callable[..., Any], place: int) -> Callable[..., Any]:
        @wraps(method)
        def call(files: Any, *arguments: Any, **options: Any) -> Any:
            if getattr(self._within, "call", False):  # part of another call, which records both
                return method(files, *arguments, **options)
            told = [method.__name__, arguments[place], arguments[0] if method.__name__ == "rename" else ""]
            self._note_alone(f"begin {told[0]} {told[1]}", begins=told)
            self._within.call = True
            try:
                done = method(files, *arguments, **options)
            finally:
                self._within.call = False
            if done is not False:
                self._note_alone(f"{told[0]} {told[1]}", done=told)
            return done

        return call

    def _note_alone(self, what: str, **values: Any) -> None:
        with open(self._notes / "turn", "a") as turn:
            fcntl.flock(turn, fcntl.LOCK_EX)
            self._note(what, **values)

    def _note(self, what: str, **values: Any) -> None:
        line = json.dumps({"what": what, "root": self._root(), "tree": self._look(), **values})
        with open(self._notes / NOTES, "a", encoding="utf-8") as file:
            file.write(f"{line}\n")

    def _root(self) -> int:
        try:
            return os.stat(self._folder).st_ino
        except FileNotFoundError:
            return 0

    def _look(self) -> dict[str, tuple[int, str]]:
        found: dict[str, tuple[int, str]] = {}
        folders = [self._folder]
        while folders:
            with suppress(FileNotFoundError), os.scandir(folders.pop()) as entries:
                for entry in entries:
                    with suppress(FileNotFoundError):
                        state = entry.stat(follow_symlinks=False)
                        content = FOLDER if stat.S_ISDIR(state.st_mode) else self._content(entry.path, state)
                        found[os.path.relpath(entry.path, self._folder)] = (state.st_ino, content)
                        folders += [entry.path] if content == FOLDER else []
        return found

    def _content(self, path: str, state: os.stat_result) -> str:
        """Store a file's content; return its digest."""
        known = state.st_ino, state.st_size, state.st_mtime_ns
        if known not in self._known:
            data = Path(path).read_bytes()
            digest = hashlib.sha256(data).hexdigest()
            kept = self._notes / CONTENTS / digest
            if not kept.exists():
                kept.write_bytes(data)
            if time.time() - state.st_mtime < SETTLED:
                return digest
            self._known[known] = digest
        return self._known[known]


def main(arguments: list[str]) -> int:
    """Record what the module's `main` does, with a bug of `planted` if one is given."""
    (folder, notes, bug), theirs = arguments[:3], arguments[arguments.index("--") + 1 :]
    os.environ["RECORDING"] = f"{folder}\n{notes}"
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "tests" / "armed")])
    if bug:
        from tests.power_cuts.planted import BUGS  # loads much of the product, which each armed process would spend

        BUGS[bug]()
    Recorder(folder, notes).arm(begin=True)
    status: int = importlib.import_module(theirs[0]).main(theirs[1:])
    return status
