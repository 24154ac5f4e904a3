"""Who carries units of work over raw text, and what is common to waiting for them."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, wait
from contextlib import contextmanager
from itertools import islice
from typing import Any

from trainer.common.progress import Bar
from trainer.common.stopping import check_stop
from trainer.config.engines import RayEngine
from trainer.config.jobs import PrepareJob
from trainer.corpus.shard_workers import Workers
from trainer.engines.executors import Carrier
from trainer.store.storage import Store

LOOK_SECONDS = 0.5
"""Between two looks at how far the work is, and whether a stop was asked for."""


@contextmanager
def carrier_of(job: PrepareJob, workers: Workers, load: Callable[[], object] | None = None) -> Iterator[Carrier]:
    """Who does a job's work: processes of this machine, or tasks of its cluster, which `load` what they need beforehand."""
    if isinstance(job.engine, RayEngine):
        from trainer.engines.ray_tasks import ray_tasks

        with ray_tasks(job.engine, Store(job.store), job.data.workers, load) as tasks:
            yield tasks
    else:
        yield workers


def carried(carrier: Carrier, bar: Bar, work: Callable[..., Any], calls: Iterable[Sequence[Any]]) -> Iterator[Any]:
    """What some work gives for each call, as it is finished. The first error, or a stop, is raised."""
    waiting, before = iter(calls), carrier.done
    pending = {carrier.submit(work, *arguments) for arguments in islice(waiting, carrier.most)}
    while pending:
        check_stop()
        finished, pending = wait(pending, timeout=LOOK_SECONDS, return_when=FIRST_COMPLETED)
        bar.reach(carrier.done - before)
        pending |= {carrier.submit(work, *arguments) for arguments in islice(waiting, len(finished))}
        for future in finished:
            yield future.result()
