"""Turns: the Prefect server limits how many stages compute on a machine's devices, or tokenize, at the same time.

Further stages wait, whether a deployment or a person started them. The limits are Prefect's global concurrency limits,
which `make up` creates with one slot each. If the server has no limit of that name, nothing waits.

    HEADRACE_GPU_SET   the name of this machine or set of GPUs, if there are several; its limits are
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
    """Wait for a turn of a kind on this machine, and hold it during the block.

    The turn of a killed process ends after at most five minutes. If the server cannot be reached, the block runs
    without a turn.
    """
    limit = limit_of(kind)
    held = ExitStack()
    try:
        if _is_limited(limit):
            held.enter_context(concurrency(limit))
    except (httpx.HTTPError, ConcurrencySlotAcquisitionError) as error:
        TaskLogger().warning("running without a turn of %s: %s", limit, error)
    try:
        yield
    finally:
        try:
            held.close()
        except httpx.HTTPError as error:  # must not replace the block's error or result
            TaskLogger().warning("cannot release the turn of %s, which will expire: %s", limit, error)


def limit_of(kind: str) -> str:
    """The name of the limit for a kind on this machine."""
    return "-".join(filter(None, [kind, os.environ.get(GPU_SET)]))


def _is_limited(limit: str) -> bool:
    """Whether the server has this limit; logs a line if it has no free slot."""
    with get_client(sync_client=True) as client:
        try:
            found = client.read_global_concurrency_limit_by_name(limit)
        except ObjectNotFound:
            return False
    if found.active_slots >= found.limit:
        TaskLogger().info("waiting for a turn: %d of %d slots of %s in use", found.active_slots, found.limit, limit)
    return True
