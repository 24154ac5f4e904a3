"""Turns: stages that compute on a machine's devices, and that tokenize, run as many at a time as the server's limits say.

Whoever started them, a deployment or a person; the others wait. The limits are Prefect's global concurrency limits, which
`make up` creates with one slot each; on a server that has none of that name nothing waits.

    HEADRACE_GPU_SET   what this machine's devices are called, where there are several: the limit is `headrace-devices-NAME`
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from prefect.client.orchestration import get_client
from prefect.concurrency.sync import concurrency
from prefect.exceptions import ObjectNotFound

from tasks.showing import TaskLogger

TOKENIZATION = "headrace-tokenization"
DEVICES = "headrace-devices"
GPU_SET = "HEADRACE_GPU_SET"


def devices() -> str:
    """The limit of this machine's devices."""
    return "-".join(filter(None, [DEVICES, os.environ.get(GPU_SET)]))


@contextmanager
def turn(limit: str) -> Iterator[None]:
    """Wait for a turn, and have it for the length of a block.

    A process that was killed has its turn for five minutes more at the most. A server that is gone meanwhile stops nothing.
    """
    with get_client(sync_client=True) as client:
        try:
            found = client.read_global_concurrency_limit_by_name(limit)
        except ObjectNotFound:
            found = None
    if found is None:
        yield
        return
    if found.active_slots >= found.limit:
        TaskLogger().info("waits for its turn: %d of %d of %s are at work", found.active_slots, found.limit, limit)
    with concurrency(limit, strict=False):
        yield
