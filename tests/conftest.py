"""What tests of all packages share: an empty store, and one into which a small corpus was prepared."""

import shutil
from pathlib import Path

import pytest

from tests.trainer.preparing import job_of, run, write_raw
from trainer.storage import Store


@pytest.fixture
def empty_store(tmp_path: Path) -> Store:
    """An empty local store."""
    return Store(str(tmp_path / "store"))


@pytest.fixture(scope="session")
def code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A raw corpus of source files; not to be written to."""
    return write_raw(tmp_path_factory.mktemp("raw") / "code")


@pytest.fixture(scope="session")
def clean(code: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store into which that corpus was prepared in one go; not to be written to."""
    store = tmp_path_factory.mktemp("clean")
    run(job_of(code, store))
    return store


@pytest.fixture
def own(clean: Path, tmp_path: Path) -> Path:
    """A copy of that store."""
    return Path(shutil.copytree(clean, tmp_path / "own"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Fast tests first: the trainer's before whole pipelines, and those marked slow last."""
    folders = ("trainer", "tasks", "flows")
    items.sort(key=lambda item: (item.get_closest_marker("slow") is not None, folders.index(item.path.parent.name)))
