"""Tests that run other projects' code, in a separate environment installed by `make test-peers`."""

from pathlib import Path

import pytest

from tests import ROOT

PYTHON = ROOT / "build" / "peers" / "bin" / "python"


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark all tests of this folder: they need that environment and take minutes."""
    item.add_marker(pytest.mark.peers)
    item.add_marker(pytest.mark.timeout(900))


@pytest.fixture(scope="session")
def peers_python() -> Path:
    """The Python of that environment."""
    assert PYTHON.exists(), f"there is no {PYTHON}: `make test-peers` installs it"
    return PYTHON
