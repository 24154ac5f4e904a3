"""A small file system."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.trainer.store.test_store_refusals import small_disk as mounted_disk


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MB."""
    with mounted_disk(tmp_path / "disk", "1m") as place:
        yield place
