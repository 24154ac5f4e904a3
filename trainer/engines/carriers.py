"""What the work sees of whoever carries its units: processes of this machine, or tasks of a cluster."""

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Protocol

Advance = Callable[[int], None]
"""Called by a unit of work with what it has done since the last call, such as raw bytes. It may break the unit off."""


class Carrier(Protocol):
    """Carries units of work, several at a time, for the length of a block. What is not finished at its end is broken off."""

    @property
    def most(self) -> int | None:
        """Units that are best handed in at a time; None for all."""

    @property
    def done(self) -> int:
        """What all units have done so far."""

    def submit(self, work: Callable[..., Any], *arguments: Any) -> "Future[Any]":
        """Have `work(*arguments, advance)` done somewhere. Both are pickled, `work` by its name."""
