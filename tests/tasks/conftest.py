"""Fixtures of the tasks' tests."""

from pathlib import Path

import pytest

from tests.support import small_values
from tests.tasks.running import Prepared, prepare


@pytest.fixture(scope="session")
def prepared(raw: Path, tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    """A job and its prepared data; each test that trains uses its own run name."""
    values = small_values(raw, tmp_path_factory.mktemp("store"))
    return Prepared(values, prepare(values))
