"""Turns: the Prefect server limits how many stages compute on a machine's devices, or tokenize, at the same time.

Further stages wait, whether a deployment or a person started them. The limits are Prefect's global concurrency limits,
which `make up` creates with one slot each. If the server has no limit of that name, nothing waits.

    HEADRACE_GPU_SET   the name of this machine or set of GPUs, if there are several; its limits are
                       `headrace-devices-NAME` and `headrace-tokenization-NAME`
"""

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import copy_context
from functools import partial
from uuid import UUID

import httpx
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.responses import ConcurrencyLimitWithLeaseResponse, GlobalConcurrencyLimitResponse
from prefect.exceptions import ObjectNotFound
from prefect.runtime import flow_run

from tasks.showing import TaskLogger
from trainer.common.errors import Preempted
from trainer.common.stopping import KEPT, stop_requested

TOKENIZATION = "headrace-tokenization"
DEVICES = "headrace-devices"
GPU_SET = "HEADRACE_GPU_SET"

LEASE = "headrace.turn"
"""Label of a flow run: the lease of its last turn, by which the watchdog ends the turn of a killed process."""

LEASE_SECONDS, RENEWED_EVERY = 90.0, 20.0
"""A turn ends this long after its process last renewed it."""

LOOK_SECONDS = 2.0
"""Interval between attempts to get a turn."""


@contextmanager
def turn(kind: str) -> Iterator[None]:
    """Wait for a turn of a kind on this machine, and hold it during the block.

    If the server cannot be reached, the block runs without a turn. Raises `Preempted` if asked to stop while waiting.
    """
    limit, lease = limit_of(kind), None
    try:
        lease = _wait(limit)
    except httpx.HTTPError as error:
        TaskLogger().warning("running without a turn of %s: %s", limit, error)
    if lease is None:
        yield
        return
    ended = threading.Event()
    keep = partial(copy_context().run, _keep, lease, limit, ended)
    threading.Thread(target=keep, name="turn", daemon=True).start()
    try:
        yield
    finally:
        ended.set()
        try:
            with get_client(sync_client=True) as client:
                client.release_concurrency_slots_with_lease(lease)
        except httpx.HTTPError as error:  # must not replace the block's error or result
            TaskLogger().warning("cannot release the turn of %s, which will expire: %s", limit, error)


def limit_of(kind: str) -> str:
    """The name of the limit for a kind on this machine."""
    return "-".join(filter(None, [kind, os.environ.get(GPU_SET)]))


def is_limited(kind: str) -> bool:
    """Whether the server limits a kind on this machine; False if it cannot be reached."""
    with suppress(httpx.HTTPError), get_client(sync_client=True) as client:
        return _find(client, limit_of(kind)) is not None
    return False


def _find(client: SyncPrefectClient, limit: str) -> GlobalConcurrencyLimitResponse | None:
    try:
        return client.read_global_concurrency_limit_by_name(limit)
    except ObjectNotFound:
        return None


def _wait(limit: str) -> UUID | None:
    """Wait for a slot; return its lease, or None if the server has no such limit."""
    with get_client(sync_client=True) as client:
        found = _find(client, limit)
        if found is None:
            return None
        told = False
        while (lease := _take(client, limit)) is None:
            if not told:
                TaskLogger().info("waiting for a turn: all %d slots of %s are in use", found.limit, limit)
            told = True
            if stop_requested():
                raise Preempted(KEPT)
            time.sleep(LOOK_SECONDS)
        return lease


def _take(client: SyncPrefectClient, limit: str) -> UUID | None:
    """The lease of a free slot, or None if there is none."""
    try:
        answer = client.increment_concurrency_slots_with_lease([limit], 1, "concurrency", LEASE_SECONDS)
    except httpx.HTTPStatusError as error:
        if error.response.status_code != httpx.codes.LOCKED:
            raise
        return None
    return ConcurrencyLimitWithLeaseResponse.model_validate(answer.json()).lease_id


def _keep(lease: UUID, limit: str, ended: threading.Event) -> None:
    """Label the flow run with a lease, and renew that until the turn ends. If it expires, the block runs on."""
    if flow_run.id is not None:
        with suppress(httpx.HTTPError), get_client(sync_client=True) as client:
            client.update_flow_run_labels(UUID(flow_run.id), {LEASE: str(lease)})
    while not ended.wait(RENEWED_EVERY):
        try:
            with get_client(sync_client=True) as client:
                client.renew_concurrency_lease(lease, LEASE_SECONDS)
        except httpx.HTTPStatusError as error:
            if not ended.is_set():
                TaskLogger().warning("running on without a turn of %s, which expired: %s", limit, error)
            return
        except httpx.HTTPError:  # the server cannot be reached
            continue
