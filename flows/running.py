"""Run a flow on this machine: the part of a command that needs Prefect, loaded after the configuration is checked."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from typing import Any

import httpx
from prefect import Flow
from prefect.settings import PREFECT_API_URL

from tasks.patience import RetriesExhausted
from trainer.common.errors import Preempted


def run(flow: Flow[[Any], Any], job: Any) -> Any:
    """Run a flow in a thread; in the main thread, Prefect would replace our signal handler by one that raises.

    Raises `Preempted` if a temporary problem lasted too long; running the job again continues.
    """
    with telling_outages(), ThreadPoolExecutor(1, "flow") as pool:
        return pool.submit(copy_context().run, flow, job).result()


@contextmanager
def telling_outages() -> Iterator[None]:
    """Raise `Preempted` with a readable message if the server cannot be reached or the retries are exhausted."""
    try:
        yield
    except RetriesExhausted as error:
        raise Preempted(f"\n{error}") from error
    except httpx.TransportError as error:
        raise Preempted(
            f"\ncannot reach the Prefect server at {PREFECT_API_URL.value()} ({error}). Finished work is in the store; "
            "run this again to continue once the server is back"
        ) from error
