"""A flow on this machine: the part of a command that needs Prefect, loaded once the configuration is known to be
good.
"""

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
    """Run a flow in a thread: in the main one, Prefect puts a handler that raises in the place of ours.

    Raises `Preempted` if what should pass by itself did not in time: running it again continues.
    """
    with telling_outages(), ThreadPoolExecutor(1, "flow") as pool:
        return pool.submit(copy_context().run, flow, job).result()


@contextmanager
def telling_outages() -> Iterator[None]:
    """Raise `Preempted`, with a message for people, for a server that cannot be reached and for patience that ran
    out.
    """
    try:
        yield
    except RetriesExhausted as error:
        raise Preempted(f"\n{error}") from error
    except httpx.TransportError as error:
        raise Preempted(
            f"\nthe Prefect server at {PREFECT_API_URL.value()} cannot be reached ({error}): what is finished is in "
            "the store; once the server is back, run it again to continue"
        ) from error
