"""Turns: the Prefect server limits how many stages compute on a machine's devices, or tokenize, at the same time.

Further stages wait, whether a deployment or a person started them. The limits are Prefect's global concurrency limits,
which `make up` creates with one slot each. If the server has no limit of that name, nothing waits.

    HEADRACE_GPU_SET   the name of this machine or set of GPUs, if there are several; its limits are
                       `headrace-devices-NAME` and `headrace-tokenization-NAME`
"""

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from contextvars import copy_context
from typing import TypeVar
from uuid import UUID

import httpx
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.responses import ConcurrencyLimitWithLeaseResponse
from prefect.exceptions import ObjectNotFound
from prefect.runtime import flow_run

from tasks.showing import TaskLogger
from trainer.common.errors import Preempted
from trainer.common.stopping import KEPT, stop_requested

T = TypeVar("T")

TOKENIZATION = "headrace-tokenization"
DEVICES = "headrace-devices"
GPU_SET = "HEADRACE_GPU_SET"

TURN = "headrace.turn"
"""Label of a flow run: the lease of its last turn, by which the watchdog ends the turn of a killed process."""

LEASE_SECONDS, RENEWED_EVERY = 180.0, 45.0
"""A turn ends this long after its process last renewed it, so the server may be away for two minutes."""

LOOK_SECONDS, END_SECONDS = 2.0, 2.0
"""Interval between attempts to get a turn; how long to wait for a renewal that is under way when the turn ends."""

BUSY_PAUSES = (0.05, 0.1, 0.2, 0.4)
"""Pauses before a request is sent again to a busy server."""


@contextmanager
def turn(kind: str) -> Iterator[None]:
    """Wait for a turn of a kind on this machine, and hold it during the block.

    If the server cannot be reached, the block runs without a turn. Raises `Preempted` if asked to stop while waiting.
    """
    held: AbstractContextManager[object] = nullcontext()
    try:
        held = _wait(limit_of(kind)) or held
    except httpx.HTTPError as error:
        TaskLogger().warning("running without a turn of %s: %s", limit_of(kind), error)
    with held:
        yield


def limit_of(kind: str) -> str:
    """The name of the limit for a kind on this machine."""
    return "-".join(filter(None, [kind, os.environ.get(GPU_SET)]))


class _Turn:
    """A slot of a limit, whose lease a thread renews."""

    def __init__(self, limit: str, lease: UUID) -> None:
        self._limit, self._lease, self._ended = limit, lease, threading.Event()
        self._thread = threading.Thread(target=copy_context().run, args=(self._renew,), name="turn", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        """Release the slot. Failures are logged, because they must not replace the block's error or result."""
        self._ended.set()
        self._thread.join(END_SECONDS)
        try:
            _at_once(lambda client: client.release_concurrency_slots_with_lease(self._lease))
        except httpx.HTTPError as error:
            TaskLogger().warning("cannot release the turn of %s, which will expire: %s", self._limit, error)

    def _renew(self) -> None:
        """Label the flow run with the lease, and renew that until the turn ends.

        If it has expired, take another one; if there is none, the block runs on without.
        """
        run, labelled = flow_run.id, None
        while True:
            with suppress(httpx.HTTPError), get_client(sync_client=True) as client:  # else the server is tried again
                if run is not None and labelled != self._lease:
                    client.update_flow_run_labels(UUID(run), {TURN: str(self._lease)})
                    labelled = self._lease
            if self._ended.wait(RENEWED_EVERY):
                return
            with suppress(httpx.HTTPError):
                if not _is_renewed(self._lease) and not self._ended.is_set():
                    lease = _take(self._limit)
                    if lease is None:
                        TaskLogger().warning("running on without a turn of %s: it expired", self._limit)
                        return
                    self._lease = lease
                    if self._ended.is_set():  # meanwhile, and the former lease was released
                        _at_once(lambda client: client.release_concurrency_slots_with_lease(self._lease))


def _wait(limit: str) -> _Turn | None:
    """Wait for a slot; return None if the server has no such limit."""
    with get_client(sync_client=True) as client:
        try:
            found = client.read_global_concurrency_limit_by_name(limit)
        except ObjectNotFound:
            if os.environ.get(GPU_SET):  # without it, the server of `headrace up` has the limits, and others need none
                TaskLogger().info("the server has no limit %s, which %s asks for: nothing waits", limit, GPU_SET)
            return None
    lease = _take(limit)
    if lease is None:
        TaskLogger().info("waiting for a turn: all %d slots of %s are in use", found.limit, limit)
    while lease is None:
        if stop_requested():
            raise Preempted(KEPT)
        time.sleep(LOOK_SECONDS)
        lease = _take(limit)
    return _Turn(limit, lease)


def _take(limit: str) -> UUID | None:
    """The lease of a free slot, or None if there is none."""
    try:
        answer = _at_once(
            lambda client: client.increment_concurrency_slots_with_lease([limit], 1, "concurrency", LEASE_SECONDS)
        )
    except httpx.HTTPStatusError as error:
        # A limit of 0 slots, by which someone stops all stages, is reported as unprocessable.
        if error.response.status_code not in (httpx.codes.LOCKED, httpx.codes.UNPROCESSABLE_ENTITY):
            raise
        return None
    return ConcurrencyLimitWithLeaseResponse.model_validate(answer.json()).lease_id


def _is_renewed(lease: UUID) -> bool:
    """Renew a lease; False if it has expired."""
    try:
        with get_client(sync_client=True) as client:
            client.renew_concurrency_lease(lease, LEASE_SECONDS)
    except httpx.HTTPStatusError as error:
        if error.response.status_code != httpx.codes.GONE:
            raise
        return False
    return True


def _at_once(request: Callable[[SyncPrefectClient], T]) -> T:
    """Send a request, and soon again while the server is busy: an SQLite database refuses it during another write.

    If an answer is lost, Prefect's client sends the request again. A slot that was given already then expires.
    """
    for pause in BUSY_PAUSES:
        try:
            with get_client(sync_client=True, httpx_settings={"event_hooks": {"response": [_refuse_busy]}}) as client:
                return request(client)
        except _Busy:
            time.sleep(pause)
    with get_client(sync_client=True) as client:
        return request(client)


class _Busy(Exception):
    """The server answered 503. Prefect's client would wait two seconds before it asks again."""


def _refuse_busy(answer: httpx.Response) -> None:
    if answer.status_code == httpx.codes.SERVICE_UNAVAILABLE:
        raise _Busy
