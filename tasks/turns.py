"""Turns: stages that compute on a machine's devices, and that tokenize, run as many at a time as the server's limits
say.

Whoever started them, a deployment or a person; the others wait. The limits are Prefect's global concurrency limits,
which `make up` creates with one slot each; on a server that has none of that name nothing waits.

    HEADRACE_GPU_SET   what this machine or set of GPUs is called, where there are several: its limits are
                       `headrace-devices-NAME` and `headrace-tokenization-NAME`
"""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import httpx
from prefect.client.orchestration import get_client
from prefect.concurrency.asyncio import ConcurrencySlotAcquisitionError
from prefect.concurrency.sync import concurrency
from prefect.exceptions import ObjectNotFound

from tasks.showing import TaskLogger

TOKENIZATION = "headrace-tokenization"
DEVICES = "headrace-devices"
GPU_SET = "HEADRACE_GPU_SET"


@contextmanager
def turn(kind: str) -> Iterator[None]:
    """Wait for a turn of a kind on this machine, and have it for the length of a block.

    A process that was killed has its turn for five minutes more at the most. A server that cannot be asked stops
    nothing: the block runs without a turn.
    """
    limit = limit_of(kind)
    held = ExitStack()
    try:
        if _is_limited(limit):
            held.enter_context(concurrency(limit))
    except (httpx.HTTPError, ConcurrencySlotAcquisitionError) as error:
        TaskLogger().warning("not waiting for a turn of %s: %s", limit, error)
    try:
        yield
    finally:
        try:
            held.close()
        except httpx.HTTPError as error:  # in place of what the block raised, or of its result
            TaskLogger().warning("the turn of %s could not be given back, and ends by itself: %s", limit, error)


def limit_of(kind: str) -> str:
    """The limit of a kind on this machine."""
    return "-".join(filter(None, [kind, os.environ.get(GPU_SET)]))


def _is_limited(limit: str) -> bool:
    """Whether there is such a limit; says so if it has no slot left."""
    with get_client(sync_client=True) as client:
        try:
            found = client.read_global_concurrency_limit_by_name(limit)
        except ObjectNotFound:
            return False
    if found.active_slots >= found.limit:
        TaskLogger().info("waits for its turn: %d of %d of %s are at work", found.active_slots, found.limit, limit)
    return True
