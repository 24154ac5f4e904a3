"""Units of work as tasks of a Ray cluster; units of a lost node are run again on another node."""

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
"""Small units in one task."""

LOOK_SECONDS = 0.5
"""Seconds between checks for a stop request."""

BREAKING_OFF = 10.0
"""Seconds that cancelled tasks have to clean up."""


class RayTasks:
    """An `Executor`. Ray runs as many tasks at a time as the cluster has cores, or `most`."""

    def __init__(self, cluster: Cluster, likeness: Likeness, most: int | None) -> None:
        self._cluster, self._likeness, self.most = cluster, likeness, most
        self._running: dict[Any, Future[Any]] = {}
        self._units = 0
        self._progress, self._moved, self._warned = (0, 0), time.monotonic(), False
        # Spread over nodes, because tasks use each node's own network and disk.
        self._task = cluster.ray.remote(
            num_cpus=1, max_retries=cluster.engine.max_failures, scheduling_strategy="SPREAD"
        )(_carry)

    @property
    def cores(self) -> int:
        """The number of cores of all nodes."""
        return max(1, int(self._cluster.ray.cluster_resources().get("CPU", 1)))

    @property
    def done(self) -> int:
        return self._look()

    def _look(self) -> int:
        """The progress of all units. Raises `DeviceError` if the head is lost; warns if nothing progresses."""
        self._cluster.head.check()
        found: int = self._cluster.ask_actor("done")
        self._watch((found, self._units - len(self._running)))
        return found

    def _watch(self, progress: tuple[int, int]) -> None:
        """Warn once if nothing has progressed for a while: nodes may be lost, or other work may occupy them."""
        now = time.monotonic()
        if progress != self._progress or not self._running:
            self._progress, self._moved, self._warned = progress, now, False
        elif now - self._moved > WAITING_SECONDS and not self._warned:
            log.warning("%s", waiting_for_room(self._cluster, "task"))
            self._warned = True

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
        """Yield `work` of each item in order; some are computed ahead. Meant for small items, `TOGETHER` per task."""
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
        """Cancel unfinished tasks."""
        left = list(self._running)
        for ref in left:
            self._cluster.ray.cancel(ref)
        if left:
            self._cluster.ray.wait(left, num_returns=len(left), timeout=BREAKING_OFF, fetch_local=False)


@contextmanager
def ray_tasks(
    engine: RayEngine, store: Store, most: int | None = None, load: Callable[[], object] | None = None
) -> Iterator[RayTasks]:
    """Join a cluster for the length of a block to run tasks; unfinished tasks are cancelled at its end.

    Processes start immediately, as many as the cluster has cores, or `most`; `load` imports what tasks will need.
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
    """The error that a task raised, as it would be without a cluster; Ray's own errors mean lost nodes or processes."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, Exception):
        cause.__cause__ = error  # it shows where on the cluster the error was raised
        return cause
    return DeviceError(f"a task on the cluster was lost and cannot be run again: {error}", transient=True)


def _carry(
    work: Callable[..., Any],
    arguments: tuple[Any, ...],
    surroundings: Surroundings,
    likeness: Likeness,
    actor: Any,
    unit: int,
) -> Any:
    surroundings.enter()
    require_consistent(likeness)  # this node may have joined after the others were checked
    return_large_buffers()
    count = Count(actor, unit)
    result = work(*arguments, count.advance)
    count.report()
    return result
