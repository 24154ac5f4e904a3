"""Possible contents of a disk after a power cut, from the recorded events.

A folder's entry is durable once the folder was synced after the change, a file's content once the file was synced. Any
part of the other changes may have reached the disk, in any order, with two restrictions: a name takes its values in
order, and a renamed file is never lost, as journaling file systems guarantee (and POSIX requires of replaced files).
Private folders are ignored.
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
"""Files that are appended to in place, and read up to the last complete record."""

CHECKPOINT = re.compile(rf"(runs/[^/]+)/checkpoints/step-(\d+)/{re.escape(MANIFEST)}")

TORN = (HALF, ZEROS, EMPTY, OLD)
"""Possible states of new content in a file: its first half, only its length, nothing, or the old content."""


class Content(NamedTuple):
    """The digest of a file's content as its process saw it, the part on the disk, and the durable content's digest."""

    digest: str
    part: str = WHOLE
    sure: str | None = None

    def read(self, contents: Path) -> bytes:
        """The content on the disk. A file that was appended to begins with its durable content."""
        whole = (contents / self.digest).read_bytes()
        if self.part == WHOLE:
            return whole
        sure = (contents / self.sure).read_bytes() if self.sure is not None else b""
        sure = sure if whole.startswith(sure) else b""
        added = len(whole) - len(sure)
        return sure + {HALF: whole[len(sure) :][: added // 2], ZEROS: bytes(added), EMPTY: b""}[self.part]


Image = dict[str, Content | None]
"""The content of each file by path; None for a folder."""


T = TypeVar("T")


class Entry(NamedTuple):
    """A name in a folder; folders have numbers, the root's is 0."""

    folder: int
    name: str


class Values(Generic[T]):
    """Successive values from the last durable one on; values are numbered from the very first."""

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
    """A rename: both names, with the numbers of their values after it."""

    source: Entry
    left: int
    target: Entry
    arrived: int


@dataclass
class Choice:
    """The changes that reached the disk: the number of a name's value, and the part of a file's content.

    Names and files that are not listed are as the process saw them.
    """

    names: dict[Entry, int] = field(default_factory=dict)
    contents: dict[int, str] = field(default_factory=dict)


class Disk:
    """A folder's names and contents as events change them, including changes that are not durable yet."""

    def __init__(self) -> None:
        self.names: dict[Entry, Values[int | None]] = {}
        self.contents: dict[int, Values[str | None]] = {}
        self._numbers: dict[int, int] = {}  # by inode, for existing files only, because inodes are reused
        self._given = 0
        self._paths: dict[Entry, str] = {}  # the last known paths
        self._moves: list[Move] = []

    def change(self, event: Event) -> None:
        """Apply the tree after an event, or during its sync."""
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
        """Mark an event's synced file or folder as durable; at the beginning, everything."""
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
        """Possible outcomes of a cut: all changes, none, each change alone or missing, and some random ones."""
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
        """The disk's content for a choice of changes."""
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
        """The choice, corrected so that a renamed file without its new name still has its old one."""
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
    """Write an image into an empty folder."""
    for path, content in sorted(image.items()):
        if content is None:
            (folder / path).mkdir()
        else:
            (folder / path).write_bytes(content.read(contents))


def half_written(image: Image, contents: Path) -> list[str]:
    """Problems that no image may have: an incomplete file, unless it is one that grows; an artifact's manifest without
    its listed files; a checkpoint without its run's records.
    """
    found = []
    for path, content in image.items():
        if content is None:
            continue
        if content.part != WHOLE and not GROWING.search(path):
            found.append(f"{path} is incomplete: {content.part}")
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
    """Whether a run's records include the save of a step."""
    records = image.get(f"{run}/{METRICS_FILE}")
    lines = records.read(contents).decode(errors="replace").splitlines() if records is not None else []
    return any('"kind": "save"' in line and f'"step": {int(step)}' in line and line.endswith("}") for line in lines)
