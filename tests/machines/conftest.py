"""Fixtures for the tests on two machines."""

from pathlib import Path

import pytest

from tests.support import write_corpora


@pytest.fixture(scope="session")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two small corpora."""
    return write_corpora(tmp_path_factory.mktemp("raw"))
