"""Fixtures for the trainer's tests: raw text, a store with its shards, and one uninterrupted run."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from tests.processes import start_warm
from tests.support import cpu_runtime, only_run, small_job, small_values, write_config, write_corpora
from tests.trainer.curated_runs import curated_run, run_through, write_kept_out
from tests.trainer.labelled_data import bert_folder, gpt2_folder
from tests.trainer.labelled_pairs import finetune_values, write_pairs
from tests.trainer.made import prepare
from trainer.common.progress import silent
from trainer.records.plans import PreparedData
from trainer.training.runtime import Runtime

LONG = {
    "training__max_steps": 64, "training__micro_batch": 4, "training__evaluate_every": 9, "training__save_every": 1,
}  # fmt: skip
"""Changes for a run that has time to be interrupted: it saves each step, accumulates, and goes into a second epoch."""


OFTEN = {"training__save_every": 1, "training__micro_batch": 3, "training__global_batch": 9}
"""Changes for a fine-tuning run that has time to be interrupted; its epochs end with a smaller batch."""


class Finished(NamedTuple):
    """A run that went from its first step to its last in one process."""

    store: Path
    run: str


def pytest_itemcollected(item: pytest.Item) -> None:
    """Tests that share what is made once a module run in one process; otherwise each process would make it."""
    made = item._fixtureinfo.name2fixturedefs.values()
    if any(each.scope == "module" for definitions in made for each in definitions):
        item.add_marker(pytest.mark.xdist_group(item.path.stem))


@pytest.fixture(scope="session")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two small corpora."""
    return write_corpora(tmp_path_factory.mktemp("raw"))


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
def finished(raw: Path, prepared: tuple[Path, PreparedData], tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """The long run, uninterrupted; not to be written to."""
    folder = tmp_path_factory.mktemp("finished")
    store = Path(shutil.copytree(prepared[0], folder / "store"))
    config = write_config(folder / "job.yaml", small_values(raw, store, **LONG))
    ended = start_warm(folder / "said", "trainer.__main__", config).wait()
    assert ended.status == 0, ended.stderr
    return Finished(store, only_run(store))


@pytest.fixture(scope="session")
def curated(raw: Path, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """A short run on curated text, measured and reported, with what it keeps out in a file beside the store; not to be
    written to."""
    folder = tmp_path_factory.mktemp("curated")
    write_kept_out(raw, folder)
    job = curated_run(raw, folder / "store")
    return Finished(folder / "store", run_through(job))


@pytest.fixture(scope="session")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Labelled pairs of real text."""
    return write_pairs(tmp_path_factory.mktemp("pairs"))


@pytest.fixture(scope="session")
def pretrained(finished: Finished) -> Path:
    """The final model of the long run: a GPT-2 of 32 positions, trained here."""
    return finished.store / finished.run / "final"


@pytest.fixture(scope="session")
def tuned(pairs: Path, pretrained: Path, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """A fine-tuning run that saves each step and accumulates, uninterrupted; not to be written to."""
    folder = tmp_path_factory.mktemp("tuned")
    config = write_config(folder / "job.yaml", finetune_values(pairs, folder / "store", pretrained, **OFTEN))
    ended = start_warm(folder / "said", "trainer.__main__", config).wait()
    assert ended.status == 0, ended.stderr
    return Finished(folder / "store", only_run(folder / "store"))


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
