"""Where the beginnings of a conversation end in what a template writes of the whole, from one look at the whole.

What a template has written before it first looks at a message, or whether there is one, it writes of every conversation that
begins in the same way. If it looks at none before its loop comes to it, and what it writes after the last one depends on
nothing that it met before, that is the same after every beginning too. So the text of each beginning is known, without writing
each by itself, which takes time that grows with the square of their number.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Any, NamedTuple

from jinja2 import nodes

KEEPING = {"namespace", "cycler", "joiner"}
"""What keeps something from one message to the next, and to what is written after the last."""

OF_ONE_MESSAGE = {"index", "index0", "first", "previtem", "cycle", "changed", "depth", "depth0"}
"""What a loop tells without looking further than the message that it is at."""

COLLECTING = (nodes.AssignBlock, nodes.FilterBlock, nodes.CallBlock, nodes.Macro)
"""What is written within these is written later than it is made."""


class Ends(NamedTuple):
    """Up to where the text of the whole is that of its first N messages, for each N; and what follows such a beginning.

    `plain` follows it where a conversation ends, `asking` where a model is to go on.
    """

    places: list[int]
    plain: str
    asking: str


def may_be_linear(template: nodes.Template) -> bool:
    """Whether nothing in a template keeps what it met, or takes a loop for more than its attributes.

    Then `Watched`, and which attributes are looked at, tell the rest.
    """
    if any(name.name in KEEPING for name in template.find_all(nodes.Name)):
        return False
    told = {id(each.node) for each in template.find_all(nodes.Getattr)}
    if any(name.name == "loop" and name.ctx == "load" and id(name) not in told for name in template.find_all(nodes.Name)):
        return False
    return not any(next(each.find_all(nodes.For), None) for each in template.find_all(COLLECTING))


class Watched(Sequence[Any]):
    """Messages that note how much had been written when each of them was first looked at, and when their end was.

    `written` says how much that is now.
    """

    def __init__(self, messages: Sequence[Any], written: Callable[[], int]) -> None:
        self._messages, self._written = messages, written
        self._places: list[int] = []
        self._at: int | None = None
        """Where the loop is that was the first to begin."""
        self._looks_elsewhere = False

    def places(self) -> list[int] | None:
        """How much was written before each message, and before their end, was looked at; None if that tells too little.

        That is so if the end was not looked at, or any of them after it, or one that the loop had not come to.
        """
        return None if self._looks_elsewhere or not self._ended() else self._places

    def walk(self, start: int) -> Iterator[Any]:
        """The messages from one on, as a loop takes them."""
        leads = self._at is None
        for place in count(start):
            if leads:
                self._at = place
            try:
                message = self[place]
            except IndexError:
                return
            yield message

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice) and (place.stop, place.step) == (None, None) and (place.start or 0) >= 0:
            return _Rest(self, place.start or 0)
        self._look(place if isinstance(place, int) and place >= 0 else len(self._messages))
        return self._messages[place]

    def __iter__(self) -> Iterator[Any]:
        return self.walk(0)

    def __len__(self) -> int:
        self._look(len(self._messages))
        return len(self._messages)

    def __bool__(self) -> bool:
        self._look(0)
        return bool(self._messages)

    def _look(self, place: int) -> None:
        self._looks_elsewhere |= self._ended() or (self._at is not None and place > self._at)
        while len(self._places) <= min(place, len(self._messages)):
            self._places.append(self._written())

    def _ended(self) -> bool:
        return len(self._places) > len(self._messages)


class _Rest(Sequence[Any]):
    """The messages from one on."""

    def __init__(self, watched: Watched, start: int) -> None:
        self._watched, self._start = watched, start

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, int) and place >= 0:
            return self._watched[self._start + place]
        return list(self)[place]

    def __iter__(self) -> Iterator[Any]:
        return self._watched.walk(self._start)

    def __len__(self) -> int:
        return max(0, len(self._watched) - self._start)
