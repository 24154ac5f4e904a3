"""Credentials from a Prefect block, for commands that start no flow: Prefect is loaded only where they are needed."""

import os

from flows.temporary_server import API_URL
from tasks.credentials import VARIABLE


def take_credentials(told: str, ask_server: bool = False) -> None:
    """Take the store's credentials if an address is told of, as a URL or in a job's text: files of this machine need
    none.

    They are of the block that HEADRACE_CREDENTIALS names, or the server, where the environment names one, or with
    `ask_server` Prefect's settings. Raises `ConfigError` if there is no such block, `Preempted` if the server cannot be
    reached.
    """
    if "://" not in told or not (ask_server or os.environ.get(VARIABLE) or os.environ.get(API_URL)):
        return
    from flows.running import telling_outages
    from tasks.credentials import use_credentials

    with telling_outages():
        use_credentials(start_server=False)
