"""Every image that a cut may leave of what was recorded, and what is wrong in one by itself."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tests.power_cuts.images import Content, Disk, Image, half_written
from tests.power_cuts.promises import Promises
from tests.power_cuts.recording import BEGIN, CONTENTS, Event

DRAWN = 4
"""Images beside the plain ones, of each event."""


class Cut(NamedTuple):
    """An image, and the event in or after which the power went."""

    after: str
    image: Image


class Cuts(NamedTuple):
    """All different images, and what is wrong, each with where it was seen first."""

    all: list[Cut]
    wrong: list[str]


def cut(events: Sequence[Event], notes: Path, draw: random.Random) -> Cuts:
    """Cut the power after each event, or within one that syncs. A call that has returned has done what it promises."""
    disk, promises, seen = Disk(), Promises(), set[frozenset[tuple[str, Content | None]]]()
    found, wrong = list[Cut](), dict[str, str]()
    for number, event in enumerate(events):
        disk.change(event)
        promises.change(event)
        if event.what != BEGIN:
            after = f"{number} {event.what}"
            for image in map(disk.image, disk.choices(draw, DRAWN)):
                known = frozenset(image.items())
                problems = promises.broken(image)
                if known not in seen:
                    seen.add(known)
                    found.append(Cut(after, image))
                    problems += half_written(image, notes / CONTENTS)
                for problem in problems:
                    wrong.setdefault(problem, after)
        disk.sync(event)
    return Cuts(found, [f"after {after}: {problem}" for problem, after in wrong.items()])
