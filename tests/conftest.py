"""What tests of all packages share: an empty store."""

from pathlib import Path

import pytest

from trainer.storage import Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """An empty local store."""
    return Store(str(tmp_path / "store"))
