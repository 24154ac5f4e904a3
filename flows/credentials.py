"""Credentials from a Prefect block, for commands that start no flow: Prefect is loaded only where they are needed."""

import os

from tasks.credentials import VARIABLE


def take_credentials(told: str, ask_server: bool = False) -> None:
    """Take the store's credentials if an address is told of, as a URL or in a job's text: files of this machine need
    none.

    They are of the block that HEADRACE_CREDENTIALS names, or with `ask_server` that the server names, where one is set.
    Raises `ConfigError` if there is no such block, `Preempted` if the server cannot be reached.
    """
    if "://" not in told or not (ask_server or os.environ.get(VARIABLE)):
        return
    from flows.running import telling_outages
    from tasks.credentials import use_credentials

    with telling_outages():
        use_credentials(start_server=False)
