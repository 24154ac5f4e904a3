"""What the work sees of whoever carries its units, and which workers of a Ray cluster belong together.

What a worker holds in the store, a lease, bears its group's name. Another worker of the same cluster is told by Ray at
once that a group is gone, where a machine that is not part of it waits for a sign of life.
"""

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Protocol

Advance = Callable[[int], None]
"""Called by a unit of work with what it has done since the last call, such as raw bytes. It may break the unit off."""


class Executor(Protocol):
    """Carries units of work, several at a time, for the length of a block. What is not finished at its end is broken
    off.
    """

    @property
    def most(self) -> int | None:
        """Units that are best handed in at a time; None for all."""

    @property
    def done(self) -> int:
        """What all units have done so far."""

    def submit(self, work: Callable[..., Any], *arguments: Any) -> "Future[Any]":
        """Have `work(*arguments, advance)` done somewhere. Both are pickled, `work` by its name."""


NAMESPACE = "headrace"
"""Of the names of actors in a cluster."""

_own: str | None = None


def enter_group(name: str) -> None:
    """From now on, this process is a worker of a group."""
    global _own
    _own = name


def own_group() -> str | None:
    """The group of this process, if it is a worker."""
    return _own


def is_gone(group: str | None) -> bool:
    """Whether Ray says that what another process of a group held is nobody's any more; False where that cannot be told.

    Ray starts the workers of a group again only after it has ended the earlier ones. A group's progress actor ends with
    its stage.
    """
    if group is None or _own is None or _cluster_of(group) != _cluster_of(_own):
        return False
    return group == _own or not _has_actor(group)


def group_name(cluster: str, name: str) -> str:
    """The name of a group in a cluster, which a lease tells from those of other clusters."""
    return f"{cluster}/{name}"


def _cluster_of(group: str) -> str:
    return group.partition("/")[0]


def _has_actor(group: str) -> bool:
    import ray

    try:
        ray.get_actor(group, NAMESPACE)
    except ValueError:
        return False
    return True
