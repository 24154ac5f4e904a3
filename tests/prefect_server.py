"""A real Prefect server for the flows of the test's process."""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings
from prefect.testing.utilities import prefect_test_harness

from tests.processes import free_port


@contextmanager
def prefect_server() -> Iterator[None]:
    """Run a server during the block, which this process's settings name.

    The harness would take a port that the kernel hands out, and its server binds it ten seconds later: by then another
    process may listen there.
    """
    with (
        temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}),
        patch("prefect.testing.utilities._find_available_port", free_port),
        prefect_test_harness(server_startup_timeout=120),
    ):
        yield
