"""All images that a cut may leave of the recorded events, and the problems in each image."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tests.power_cuts.images import Content, Disk, Image, half_written
from tests.power_cuts.promises import Promises
from tests.power_cuts.recording import BEGIN, CONTENTS, Event

DRAWN = 4
"""Additional random images of each event."""


class Cut(NamedTuple):
    """An image, and the event during or after which the power was cut."""

    after: str
    image: Image


class Cuts(NamedTuple):
    """All different images, and all problems, each with the event of its first occurrence."""

    all: list[Cut]
    wrong: list[str]


def cut(events: Sequence[Event], notes: Path, draw: random.Random) -> Cuts:
    """Cut the power after each event, or during a sync. Calls that have returned must have kept their promises."""
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
