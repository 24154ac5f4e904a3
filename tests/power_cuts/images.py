"""What a disk may hold after a power cut, from what was done to it.

An entry of a folder is sure once the folder was synced since it changed, and what a file holds once the file was. Of
the rest, any part may have reached the disk, in any order: but a name goes through what it stood for in its order, and
what is renamed is never lost, as file systems with a journal promise (and POSIX asks of what is replaced). Private
folders are left out: nothing in them counts.
"""

import json
import random
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

from tests.power_cuts.recording import BEGIN, FOLDER, Event
from trainer.store.manifest import MANIFEST
from trainer.store.names import METRICS_FILE
from trainer.store.private_folders import STAGING

WHOLE, HALF, ZEROS, EMPTY, OLD = "whole", "half", "zeros", "empty", "old"
GROWING = re.compile(r"/(metrics\.jsonl$|tensorboard/|logs/)")
"""Files that are appended to in their place, and read as far as they are whole."""

CHECKPOINT = re.compile(rf"(runs/[^/]+)/checkpoints/step-(\d+)/{re.escape(MANIFEST)}")

TORN = (HALF, ZEROS, EMPTY, OLD)
"""What may be there of what is new in a file: its beginning, its length alone, or nothing; or what was there before."""


class Content(NamedTuple):
    """The digest of what a file held for its process, what is there of that, and the digest of what it held surely."""

    digest: str
    part: str = WHOLE
    sure: str | None = None

    def read(self, contents: Path) -> bytes:
        """What is on the disk. A file that was appended to since begins with what was sure."""
        whole = (contents / self.digest).read_bytes()
        if self.part == WHOLE:
            return whole
        sure = (contents / self.sure).read_bytes() if self.sure is not None else b""
        sure = sure if whole.startswith(sure) else b""
        added = len(whole) - len(sure)
        return sure + {HALF: whole[len(sure) :][: added // 2], ZEROS: bytes(added), EMPTY: b""}[self.part]


Image = dict[str, Content | None]
"""What is there of each file, by path; None of a folder."""


T = TypeVar("T")


class Entry(NamedTuple):
    """A name in a folder, which is told by its number; the root's is 0."""

    folder: int
    name: str


class Values(Generic[T]):
    """What something was, in order, from when it was last sure; values are counted from the first that it ever had."""

    def __init__(self, first: T) -> None:
        self.sure, self._values = 0, [first]

    @property
    def last(self) -> int:
        return self.sure + len(self._values) - 1

    def __getitem__(self, number: int) -> T:
        return self._values[number - self.sure]

    def now(self) -> T:
        return self._values[-1]

    def since_sure(self) -> list[T]:
        return self._values

    def is_sure(self) -> bool:
        return len(self._values) == 1

    def add(self, value: T) -> None:
        if value != self._values[-1]:
            self._values.append(value)

    def make_sure(self) -> None:
        self.sure, self._values = self.last, self._values[-1:]


class Move(NamedTuple):
    """What got another name: the numbers of the values of both names once it had it."""

    source: Entry
    left: int
    target: Entry
    arrived: int


@dataclass
class Choice:
    """What of a cut's open questions reached the disk: the number of a name's value, and the part of a file's content.
    What is not told is as the process saw it.
    """

    names: dict[Entry, int] = field(default_factory=dict)
    contents: dict[int, str] = field(default_factory=dict)


class Disk:
    """A folder's names and contents as events change them, with what of it is not sure yet."""

    def __init__(self) -> None:
        self.names: dict[Entry, Values[int | None]] = {}
        self.contents: dict[int, Values[str | None]] = {}
        self._numbers: dict[int, int] = {}  # by inode, of what is there: inodes come to be used again
        self._given = 0
        self._paths: dict[Entry, str] = {}  # as they were last
        self._moves: list[Move] = []

    def change(self, event: Event) -> None:
        """Go on to what was there after an event, or while it synced something."""
        there = {inode for inode, _ in event.tree.values()}
        self._numbers = {inode: number for inode, number in self._numbers.items() if inode in there}
        now: dict[Entry, int] = {}
        folders = {"": 0}
        for path, (inode, content) in sorted(event.tree.items()):
            folder, _, name = path.rpartition("/")
            if inode not in self._numbers:
                self._given += 1
                self._numbers[inode] = self._given
            number = self._numbers[inode]
            entry = Entry(folders[folder], name)
            now[entry], self._paths[entry] = number, path
            if content == FOLDER:
                folders[path] = number
            else:
                self.contents.setdefault(number, Values(None)).add(content)
        self._change_names(now)

    def sync(self, event: Event) -> None:
        """Make sure of what an event synced: of all, at the beginning."""
        if event.what == BEGIN:
            for number in [0, *self._numbers.values()]:
                self._make_sure(number)
        elif event.synced == event.root:
            self._make_sure(0)
        elif event.synced in self._numbers:
            self._make_sure(self._numbers[event.synced])

    def _change_names(self, now: dict[Entry, int]) -> None:
        left = {entry: values.now() for entry, values in self.names.items() if values.now() is not None}
        left = {entry: number for entry, number in left.items() if entry not in now}
        came = [entry for entry in now if entry not in self.names or self.names[entry].now() != now[entry]]
        for entry in left:
            self.names[entry].add(None)
        for entry in came:
            self.names.setdefault(entry, Values(None)).add(now[entry])
            for source in (each for each in left if left[each] == now[entry]):
                self._moves.append(Move(source, self.names[source].last, entry, self.names[entry].last))

    def _make_sure(self, number: int) -> None:
        if number in self.contents:
            self.contents[number].make_sure()
            return
        inside = [entry for entry in self.names if entry.folder == number]
        for entry in inside:
            self.names[entry].make_sure()
        self._moves = [move for move in self._moves if self.names[move.target].sure < move.arrived]
        sources = {move.source for move in self._moves}
        for entry in inside:
            if self.names[entry].now() is None and entry not in sources:
                del self.names[entry]

    def choices(self, draw: random.Random, drawn: int) -> Iterator[Choice]:
        """Ways in which a cut may end: all, nothing, each open question answered otherwise than the rest, and some
        drawn.
        """
        names = [entry for entry, values in self.names.items() if not values.is_sure() and not self._is_private(entry)]
        public = [values for entry, values in self.names.items() if not self._is_private(entry)]
        unsure = {number for number, values in self.contents.items() if not values.is_sure()}
        files = sorted({number for values in public for number in values.since_sure() if number in unsure})
        nothing = {entry: self.names[entry].sure for entry in names}
        old = dict.fromkeys(files, OLD)
        yield Choice()
        if names or files:
            yield Choice(dict(nothing), dict(old))
        for entry in names:
            for number in range(self.names[entry].sure, self.names[entry].last):
                yield Choice({entry: number})
            yield Choice({**nothing, entry: self.names[entry].last}, dict(old))
        for number in files:
            for part in TORN:
                yield Choice({}, {number: part})
        for _ in range(drawn if len(names) + len(files) > 1 else 0):
            yield Choice(
                {entry: draw.randint(self.names[entry].sure, self.names[entry].last) for entry in names},
                {number: draw.choice([WHOLE, *TORN]) for number in files},
            )

    def image(self, choice: Choice) -> Image:
        """What is on the disk if that has reached it."""
        names = self._without_loss(choice.names)
        inside: dict[int, list[tuple[str, int]]] = {}
        for entry, values in self.names.items():
            number = values[names.get(entry, values.last)]
            if number is not None and not (entry.folder == 0 and entry.name == STAGING):
                inside.setdefault(entry.folder, []).append((entry.name, number))
        found: Image = {}

        def fill(folder: int, path: str) -> None:
            for name, number in inside.get(folder, []):
                if number not in self.contents:
                    found[f"{path}{name}"] = None
                    fill(number, f"{path}{name}/")
                    continue
                values = self.contents[number]
                part, now = choice.contents.get(number, WHOLE), values.now()
                assert now is not None
                sure = values[values.sure]
                if part == OLD and sure is not None:
                    found[f"{path}{name}"] = Content(sure)
                else:
                    part = EMPTY if part == OLD else part
                    found[f"{path}{name}"] = Content(now, part, None if part == WHOLE else sure)

        fill(0, "")
        return found

    def _without_loss(self, chosen: Mapping[Entry, int]) -> dict[Entry, int]:
        """The same, with what was renamed still under its old name where it does not have the new one."""
        names = dict(chosen)
        for move in reversed(self._moves):
            target, source = self.names[move.target], self.names.get(move.source)
            if names.get(move.target, target.last) >= move.arrived:
                continue
            if source is None or source.sure >= move.left:
                names[move.target] = move.arrived
            elif names.get(move.source, source.last) >= move.left:
                names[move.source] = move.left - 1
        return names

    def _is_private(self, entry: Entry) -> bool:
        return self._paths[entry].split("/", 1)[0] == STAGING


def lay_out(image: Image, contents: Path, folder: Path) -> None:
    """Write an image to an empty folder."""
    for path, content in sorted(image.items()):
        if content is None:
            (folder / path).mkdir()
        else:
            (folder / path).write_bytes(content.read(contents))


def half_written(image: Image, contents: Path) -> list[str]:
    """What no cut may leave, whatever goes on from it: a file under its name that is not whole, unless it is one that
    grows, an artifact's manifest without the files that it lists, and a checkpoint without its run's records.
    """
    found = []
    for path, content in image.items():
        if content is None:
            continue
        if content.part != WHOLE and not GROWING.search(path):
            found.append(f"{path}: {content.part} of it")
        elif path.endswith(f"/{MANIFEST}"):
            folder = path.removesuffix(MANIFEST)
            if (checkpoint := CHECKPOINT.fullmatch(path)) and not _tells_save(image, contents, *checkpoint.groups()):
                found.append(f"{path} without the records of the run up to it")
            for record in json.loads((contents / content.digest).read_bytes())["files"]:
                there = image.get(f"{folder}{record['name']}")
                if there is None or (there.digest, there.part) != (record["sha256"], WHOLE):
                    found.append(f"{path} without its {record['name']}")
    return found


def _tells_save(image: Image, contents: Path, run: str, step: str) -> bool:
    """Whether a run's records go up to the save of a step."""
    records = image.get(f"{run}/{METRICS_FILE}")
    lines = records.read(contents).decode(errors="replace").splitlines() if records is not None else []
    return any('"kind": "save"' in line and f'"step": {int(step)}' in line and line.endswith("}") for line in lines)
