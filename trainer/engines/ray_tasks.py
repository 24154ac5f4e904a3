"""Units of work as tasks of a Ray cluster: what a lost node had begun is done again on another one."""

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from functools import partial
from itertools import islice
from typing import Any, TypeVar

from trainer.common.errors import DeviceError
from trainer.common.process import return_large_buffers
from trainer.common.stopping import check_stop
from trainer.config.engines import RayEngine
from trainer.engines.consistency import Likeness, consistent_nodes, require_consistent
from trainer.engines.executors import Advance
from trainer.engines.ray_cluster import (
    WAITING_SECONDS,
    Cluster,
    Count,
    Surroundings,
    joined,
    require_cores,
    waiting_for_room,
)
from trainer.store.storage import Store

log = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R")

TOGETHER = 8
"""Small units that are one task."""

LOOK_SECONDS = 0.5
"""Between two looks whether a stop was asked for."""

BREAKING_OFF = 10.0
"""Seconds that tasks are given to clear away what they have begun, once they are broken off."""


class RayTasks:
    """A `Executor`. Ray starts as many tasks at a time as the cluster has cores, or `most`."""

    def __init__(self, cluster: Cluster, likeness: Likeness, most: int | None) -> None:
        self._cluster, self._likeness, self.most = cluster, likeness, most
        self._running: dict[Any, Future[Any]] = {}
        self._units = 0
        self._progress, self._moved, self._told = (0, 0), time.monotonic(), False
        # Far from each other: what they read and write goes through each node's own network and disk.
        self._task = cluster.ray.remote(
            num_cpus=1, max_retries=cluster.engine.max_failures, scheduling_strategy="SPREAD"
        )(_carry)

    @property
    def cores(self) -> int:
        """The cores of all nodes."""
        return max(1, int(self._cluster.ray.cluster_resources().get("CPU", 1)))

    @property
    def done(self) -> int:
        return self._look()

    def _look(self) -> int:
        """How far all units are together. Raises `DeviceError` if the head is lost, and says so if nothing moves."""
        self._cluster.head.check()
        found: int = self._cluster.ray.get(self._cluster.actor.done.remote())
        self._watch((found, self._units - len(self._running)))
        return found

    def _watch(self, progress: tuple[int, int]) -> None:
        """Say so, once, if nothing has moved for a while: no node may be left, or others' work may take all room."""
        now = time.monotonic()
        if progress != self._progress or not self._running:
            self._progress, self._moved, self._told = progress, now, False
        elif now - self._moved > WAITING_SECONDS and not self._told:
            log.warning("%s", waiting_for_room(self._cluster, "task"))
            self._told = True

    def submit(self, work: Callable[..., Any], *arguments: Any) -> "Future[Any]":
        self._units += 1
        cluster = self._cluster
        ref = self._task.remote(work, arguments, cluster.surroundings, self._likeness, cluster.actor, self._units)
        outcome: Future[Any] = Future()
        self._running[ref] = outcome

        def settle(ended: "Future[Any]") -> None:
            self._running.pop(ref, None)
            error = ended.exception()
            if error is None:
                outcome.set_result(ended.result())
            else:
                outcome.set_exception(_own_error(error))

        ref.future().add_done_callback(settle)
        return outcome

    def map(self, work: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
        """What `work` gives of each item, in their order; some are done ahead. For what is small, of which some go
        together.
        """
        remaining, pending = iter(items), deque[Future[list[R]]]()
        kept = self._cluster.ray.put(partial(_each, work))
        ahead = 2 * self.cores
        while True:
            while len(pending) < ahead and (some := list(islice(remaining, TOGETHER))):
                pending.append(self.submit(kept, some))
            if not pending:
                return
            while not wait([pending[0]], LOOK_SECONDS).done:
                check_stop()
                self._look()
            yield from pending.popleft().result()

    def break_off(self) -> None:
        """End what is not finished."""
        left = list(self._running)
        for ref in left:
            self._cluster.ray.cancel(ref)
        if left:
            self._cluster.ray.wait(left, num_returns=len(left), timeout=BREAKING_OFF, fetch_local=False)


@contextmanager
def ray_tasks(
    engine: RayEngine, store: Store, most: int | None = None, load: Callable[[], object] | None = None
) -> Iterator[RayTasks]:
    """Join a cluster for the length of a block, to have tasks done; those that are not finished at its end are broken
    off.

    Processes are started at once, as many as the cluster has cores, or `most`, and `load` what tasks will need.
    Raises as `joined` and `consistent_nodes` do, and `DeviceError` if no node has a core for tasks.
    """
    with joined(engine) as cluster, consistent_nodes(cluster, store) as likeness:
        require_cores(cluster)
        tasks = RayTasks(cluster, likeness, most)
        try:
            for _ in range(min(tasks.cores, most or tasks.cores) if load else 0):
                tasks.submit(_load, load)
            yield tasks
        finally:
            tasks.break_off()


def _load(load: Callable[[], object], advance: Advance) -> None:
    load()


def _each(work: Callable[[T], R], items: list[T], advance: Advance) -> list[R]:
    return [work(item) for item in items]


def _own_error(error: BaseException) -> Exception:
    """The error that a task ended with, as it would be without a cluster; one of Ray's own tells of lost nodes or
    processes.
    """
    cause = getattr(error, "cause", None)
    if isinstance(cause, Exception):
        cause.__cause__ = error  # which tells where on the cluster it was raised
        return cause
    return DeviceError(f"what runs on the cluster was lost, and cannot be done again: {error}", transient=True)


def _carry(
    work: Callable[..., Any],
    arguments: tuple[Any, ...],
    surroundings: Surroundings,
    likeness: Likeness,
    actor: Any,
    unit: int,
) -> Any:
    surroundings.enter()
    require_consistent(likeness)  # this node may have joined since the others were looked at
    return_large_buffers()
    count = Count(actor, unit)
    result = work(*arguments, count.advance)
    count.tell()
    return result
