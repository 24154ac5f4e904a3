"""Store credentials from a Prefect block, for commands that start no flow; Prefect is loaded only if needed."""

import os

from flows.temporary_server import API_URL
from tasks.credentials import VARIABLE


def take_credentials(text: str, ask_server: bool = False) -> None:
    """Load the store's credentials if `text`, a store's path or a job's JSON, contains a URL; local files need none.

    The block is the one in HEADRACE_CREDENTIALS. If that is not set, the Prefect server is asked for it, provided that
    PREFECT_API_URL is set; with `ask_server`, a server in Prefect's settings counts too. Raises `ConfigError` if the
    block does not exist, `Preempted` if the server cannot be reached.
    """
    if "://" not in text or not (ask_server or os.environ.get(VARIABLE) or os.environ.get(API_URL)):
        return
    from flows.running import explaining_outages
    from tasks.credentials import use_credentials

    with explaining_outages():
        use_credentials(start_server=False)
