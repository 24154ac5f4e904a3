"""Fixtures for the trainer's tests: a store with the shards of raw text, and an uninterrupted run of each kind."""

import shutil
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
import torch

from tests import disks
from tests.support import cpu_runtime, small_job
from tests.trainer.curated_runs import curated_run, run_through, write_kept_out
from tests.trainer.labelled_data import bert_folder, gpt2_folder
from tests.trainer.made import prepare
from tests.trainer.short_texts import short_job, write_short_texts
from tests.trainer.small_jobs import OF_EACH_KIND, Finished, run_whole
from trainer.common.progress import silent
from trainer.records.plans import PreparedData
from trainer.training.runtime import Runtime


def pytest_itemcollected(item: pytest.Item) -> None:
    """Tests that share what is made once a module run in one process; otherwise each process would make it."""
    made = item._fixtureinfo.name2fixturedefs.values()
    if any(each.scope == "module" for definitions in made for each in definitions):
        item.add_marker(pytest.mark.xdist_group(item.path.stem))


@pytest.fixture(scope="session")
def prepared(raw: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, PreparedData]:
    """A store that holds their tokenizer and shards; not to be written to."""
    store = tmp_path_factory.mktemp("prepared")
    return store, prepare(small_job(raw, store).preparation(), silent())


@pytest.fixture
def data(prepared: tuple[Path, PreparedData]) -> PreparedData:
    return prepared[1]


@pytest.fixture
def stocked(prepared: tuple[Path, PreparedData], tmp_path: Path) -> Path:
    """A store of the test's own, with the tokenizer and the shards."""
    return Path(shutil.copytree(prepared[0], tmp_path / "store"))


@pytest.fixture(scope="session")
def ran(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Finished]:
    """The run of the small job of a kind, uninterrupted; not to be written to."""

    @cache
    def run(name: str) -> Finished:
        return run_whole(OF_EACH_KIND[name], request.getfixturevalue, tmp_path_factory.mktemp("ran"))

    return run


@pytest.fixture(scope="session")
def finished(ran: Callable[[str], Finished]) -> Finished:
    """The long pretraining run."""
    return ran("pretraining")


@pytest.fixture(scope="session")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Corpora of short texts."""
    return write_short_texts(tmp_path_factory.mktemp("texts"))


@pytest.fixture(scope="session")
def made(texts: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, PreparedData]:
    """A store with their tokenizer and shards; not to be written to."""
    store = tmp_path_factory.mktemp("made") / "store"
    return store, prepare(short_job(texts, store).preparation(), silent())


@pytest.fixture
def store(made: tuple[Path, PreparedData], tmp_path: Path) -> Path:
    """A copy of that store, of the test's own."""
    return Path(shutil.copytree(made[0], tmp_path / "store"))


@pytest.fixture(scope="session")
def curated(raw: Path, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """A short run on curated text, measured and reported, with what it keeps out in a file beside the store; not to be
    written to."""
    folder = tmp_path_factory.mktemp("curated")
    write_kept_out(raw, folder)
    job = curated_run(raw, folder / "store")
    return Finished(folder / "store", run_through(job))


@pytest.fixture(scope="session")
def pretrained(finished: Finished) -> Path:
    """The final model of the long run: a GPT-2 of 32 positions, trained here."""
    return finished.folder / "final"


@pytest.fixture(scope="session")
def tuned(ran: Callable[[str], Finished]) -> Finished:
    """The run on labelled pairs."""
    return ran("fine-tuning")


@pytest.fixture(scope="session")
def answering(ran: Callable[[str], Finished]) -> Finished:
    """The run on conversations."""
    return ran("instruction tuning")


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small WordPiece tokenizer and a BERT's configuration."""
    return bert_folder(tmp_path_factory.mktemp("models") / "bert")


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small byte-level tokenizer and a GPT-2's configuration."""
    return gpt2_folder(tmp_path_factory.mktemp("models") / "gpt2")


@pytest.fixture
def runtime() -> Iterator[Runtime]:
    """One rank in this process."""
    threads = torch.get_num_threads()
    yield cpu_runtime()
    torch.set_num_threads(threads)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MB."""
    with disks.small_disk(tmp_path / "disk", "1m") as disk:
        yield disk
