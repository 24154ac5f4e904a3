"""Clusters, and what the same work gives without one."""

from collections.abc import Iterator

import pytest

from tests.cluster.nodes import SETTINGS, Nodes, environment


def pytest_itemcollected(item: pytest.Item) -> None:
    """All need a cluster, which takes its time to start."""
    item.add_marker(pytest.mark.cluster)
    item.add_marker(pytest.mark.timeout(600))


@pytest.fixture(scope="session", autouse=True)
def settings() -> Iterator[None]:
    """What nodes take from the environment."""
    with environment(**SETTINGS):
        yield


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    """Two nodes, of which none is killed."""
    yield from started()


@pytest.fixture
def doomed() -> Iterator[Nodes]:
    """Two nodes of a test's own, to be killed."""
    yield from started()


def started() -> Iterator[Nodes]:
    cluster = Nodes()
    try:
        yield cluster
    finally:
        cluster.end()
