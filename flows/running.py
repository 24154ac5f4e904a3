"""Run a flow on this machine: the part of a command that needs Prefect, loaded after the configuration is checked."""

import os
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from typing import Any

import httpx
from prefect import Flow, tags
from prefect.settings import PREFECT_API_URL, PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings

from tasks import OWN_SERVER
from tasks.patience import RetriesExhausted
from trainer.common.errors import ConfigError, Preempted

TAG = "headrace-command"
"""The tag of a command's flow runs; those of deployments have `headrace`."""

HEARTBEAT_SECONDS = 30
"""As in deployments/prefect.yaml."""

WITHOUT = ", or unset PREFECT_API_URL to run without it"

TOO_LARGE = re.compile(r"parameters must be less than ([\d,]+) bytes when serialized \(got ([\d,]+) bytes\)")
"""What the server answers if a flow run's parameters exceed its limit."""


def run(flow: Flow[[Any], Any], job: Any) -> Any:
    """Run a flow in a thread; in the main thread, Prefect would replace our signal handler by one that raises.

    The run sends heartbeats, so that deployments/automations.yaml marks it as crashed if this process is killed. Raises
    `Preempted` if a temporary problem lasted too long; running the job again continues.
    """
    every = PREFECT_FLOWS_HEARTBEAT_FREQUENCY.value()
    if OWN_SERVER not in os.environ:  # a temporary server ends with this process
        every = every or HEARTBEAT_SECONDS
    beats = temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: every})
    with explaining_outages(), beats, tags(TAG), ThreadPoolExecutor(1, "flow") as pool:
        return pool.submit(copy_context().run, flow, job).result()


@contextmanager
def explaining_outages() -> Iterator[None]:
    """Raise `Preempted` with a readable message if the server cannot be reached or the retries are exhausted.

    Raises `ConfigError` if the server refuses the password, or a job because of its size.
    """
    try:
        yield
    except RetriesExhausted as error:
        raise Preempted(f"\n{error}") from error
    except (httpx.HTTPError, RuntimeError) as error:
        # Before a flow begins, Prefect asks for the server's version; if that fails, it raises this RuntimeError.
        reason = error.__cause__ if str(error).startswith("Failed to reach API") else error
        server = f"the Prefect server at {PREFECT_API_URL.value()}"
        if isinstance(reason, httpx.TransportError):
            raise Preempted(
                f"\ncannot reach {server} ({reason}). Finished work is in the store; run this again to continue once "
                f"the server is back{WITHOUT if OWN_SERVER not in os.environ else ''}"
            ) from error
        if isinstance(reason, httpx.HTTPStatusError) and reason.response.status_code == httpx.codes.UNAUTHORIZED:
            raise ConfigError(
                f"{server} refuses a command without its password (401): set "
                f"PREFECT_API_AUTH_STRING=user:password as on the server{WITHOUT}"
            ) from error
        if isinstance(reason, httpx.HTTPStatusError) and (size := TOO_LARGE.search(reason.response.text)):
            raise ConfigError(
                f"{server} refuses a job of {size[2]} bytes as JSON; it takes at most {size[1]}: write long lists of "
                f"paths as globs, or raise PREFECT_SERVER_API_MAX_PARAMETER_SIZE where the server starts{WITHOUT}"
            ) from None  # the error's text contains the whole job
        raise
