"""The interface between work and the engines that run it, and groups of workers of a Ray cluster.

A lease in the store holds the group name of its worker. Workers of the same cluster learn from Ray immediately that a
group is gone; machines outside it wait until the lease expires.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, Protocol

Advance = Callable[[int], None]
"""A unit of work calls it with the amount done since the last call, e.g. raw bytes. It may raise to stop the unit."""


@contextmanager
def filling(advance: Advance, amount: int) -> Iterator[Advance]:
    """Count a unit's progress towards its amount; add what is missing at the end, because the texts of a file may be
    only a part of it, such as one of its columns.
    """
    counted = 0

    def count(done: int) -> None:
        nonlocal counted
        counted += done
        advance(done)

    yield count
    advance(max(0, amount - counted))


class Executor(Protocol):
    """Runs units of work, several at a time, within a `with` block; unfinished units are cancelled at its end."""

    @property
    def most(self) -> int | None:
        """The number of units to submit at a time; None for all."""

    @property
    def done(self) -> int:
        """The amount that all units have done so far."""

    def submit(self, work: Callable[..., Any], *arguments: Any) -> "Future[Any]":
        """Run `work(*arguments, advance)` somewhere. Both are pickled, `work` by its name."""


NAMESPACE = "headrace"
"""The Ray namespace of actors' names."""

_own: str | None = None


def enter_group(name: str) -> None:
    """Mark this process as a worker of a group, from now on."""
    global _own
    _own = name


def own_group() -> str | None:
    """The group of this process, if it is a worker."""
    return _own


def is_gone(group: str | None) -> bool:
    """Whether Ray reports that the holder of a lease from another process of a group is gone; False if unknown.

    Ray restarts the workers of a group only after it has ended the earlier ones. A group's progress actor ends with its
    stage.
    """
    if group is None or _own is None or _cluster_of(group) != _cluster_of(_own):
        return False
    return group == _own or not _has_actor(group)


def group_name(cluster: str, name: str) -> str:
    """The name of a group, unique across clusters."""
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
