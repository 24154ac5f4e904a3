"""Fixtures of all packages: stores, small data sets of each kind, and a store with a prepared one."""

import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

import _pytest.runner
import pytest

from tests import ROOT
from tests.s3 import S3Server, s3_server
from tests.support import settled, write_corpora
from tests.trainer.chats import chat_model, write_chats
from tests.trainer.labelled_pairs import write_pairs
from tests.trainer.labelled_words import write_words
from tests.trainer.preferences import write_preferences
from tests.trainer.preparing import job_of, run, write_raw
from trainer.store.checked_files import machine_cache
from trainer.store.storage import Store


def pytest_configure() -> None:
    """Set the environment of all processes that tests start.

    It does not name the test: else every test would start a new worker and load the libraries. It names this checkout,
    which processes that import nothing from the current folder would not find if another one is installed.
    """
    _pytest.runner._update_current_test_var = lambda item, when: None
    if str(ROOT) not in (paths := os.environ.get("PYTHONPATH", "").split(os.pathsep)):
        os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, paths)])


@pytest.fixture
def empty_store(tmp_path: Path) -> Store:
    """An empty local store."""
    return Store(str(tmp_path / "store"))


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A real S3 server."""
    with s3_server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture(autouse=True, scope="session")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Put the cache of remote files into the tests' temporary folder, but keep the usual cache of compiled code."""
    compiled, cache = machine_cache() / "compiled", tmp_path_factory.mktemp("cache")
    compiled.mkdir(parents=True, exist_ok=True)
    (cache / "compiled").symlink_to(compiled)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEADRACE_CACHE", str(cache))
        yield


def make_store(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """An empty store: `local`, in `memory` (any file system of fsspec), or on `s3`."""
    if kind == "local":
        return Store(str(tmp_path / "store"))
    return Store(request.getfixturevalue("s3").new_store() if kind == "s3" else f"memory://{uuid.uuid4().hex}")


@pytest.fixture(params=["local", "memory", "s3"])
def any_store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """A store of each kind."""
    return make_store(request.param, request, tmp_path)


@pytest.fixture(params=["memory", "s3"])
def remote_store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """A store that is not local."""
    return make_store(request.param, request, tmp_path)


@pytest.fixture(params=["local", "s3"])
def atomic_store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """A store in which one of several simultaneous writers wins."""
    return make_store(request.param, request, tmp_path)


@pytest.fixture(scope="session")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two small corpora."""
    return settled(write_corpora(tmp_path_factory.mktemp("raw")))


@pytest.fixture(scope="session")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Labelled pairs of real text."""
    return settled(write_pairs(tmp_path_factory.mktemp("pairs")))


@pytest.fixture(scope="session")
def words(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Real texts with a label for each word."""
    return settled(write_words(tmp_path_factory.mktemp("words")))


@pytest.fixture(scope="session")
def chats(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small conversations."""
    return settled(write_chats(tmp_path_factory.mktemp("chats")))


@pytest.fixture(scope="session")
def preferences(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small pairs of answers."""
    return settled(write_preferences(tmp_path_factory.mktemp("preferences")))


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new model for tuning on them, with its tokenizer; read-only."""
    return chat_model(tmp_path_factory.mktemp("models") / "llama")


@pytest.fixture(scope="session")
def code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A raw corpus of source files; read-only."""
    return write_raw(tmp_path_factory.mktemp("raw") / "code")


@pytest.fixture(scope="session")
def clean(code: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with that corpus, prepared without interruption; read-only."""
    store = tmp_path_factory.mktemp("clean")
    run(job_of(code, store))
    return store


@pytest.fixture
def own(clean: Path, tmp_path: Path) -> Path:
    """A copy of that store."""
    return Path(shutil.copytree(clean, tmp_path / "own"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort tests: the trainer's before whole pipelines, and those marked slow last.

    Among the slow ones, those that must share a process come first, so that another process runs the others meanwhile.
    """
    folders = ("samples", "trainer", "docs", "tasks", "deployments", "flows", "machines", "cluster", "peers")

    def turn(item: pytest.Item) -> tuple[bool, bool, int]:
        slow, grouped = (item.get_closest_marker(name) is not None for name in ("slow", "xdist_group"))
        return slow, slow and not grouped, folders.index(item.path.relative_to(Path(__file__).parent).parts[0])

    items.sort(key=turn)
