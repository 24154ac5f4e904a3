"""Clusters for the tests."""

from collections.abc import Iterator

import pytest

from tests.cluster.nodes import SETTINGS, Nodes, environment


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark all tests of this folder: they need a cluster, which starts slowly."""
    item.add_marker(pytest.mark.cluster)
    item.add_marker(pytest.mark.timeout(600))


@pytest.fixture(scope="session", autouse=True)
def settings() -> Iterator[None]:
    """Environment variables of the nodes."""
    with environment(**SETTINGS):
        yield


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    """Two nodes, shared by tests that do not kill any."""
    yield from started()


@pytest.fixture
def doomed() -> Iterator[Nodes]:
    """Two nodes that a test may kill."""
    yield from started()


def started() -> Iterator[Nodes]:
    cluster = Nodes()
    try:
        yield cluster
    finally:
        cluster.end()
