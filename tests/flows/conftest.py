"""Fixtures of the flows' tests: a real Prefect server, and a finished pipeline on it."""

import runpy
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import pytest
from prefect import State
from prefect.settings import PREFECT_API_URL

from flows.data_to_model import data_to_model
from tasks.data import encode, prepare_tokenizer, tokenize_corpus
from tasks.evaluation import evaluate, evaluate_run, predict_texts
from tasks.reporting import report
from tasks.training import train
from tests.headrace import headrace
from tests.prefect_server import prefect_server
from tests.processes import Ended, cores
from tests.support import small_values, write_config
from trainer.config.files import validate_job
from trainer.config.jobs import PipelineJob
from trainer.records.results import Outcome

SETTINGS: dict[str, Any] = {"training__max_steps": 40, "training__save_every": 1, "training__evaluate_every": 10}


def pytest_itemcollected(item: pytest.Item) -> None:
    """Group these tests in one process, which has the only server and the finished pipeline."""
    item.add_marker(pytest.mark.xdist_group("flows"))


class Done(NamedTuple):
    """A finished pipeline: its job, and the state of its flow run."""

    job: PipelineJob
    state: State[Outcome]

    @property
    def store(self) -> Path:
        return Path(self.job.store)

    @property
    def flow_run(self) -> UUID:
        return flow_run_of(self.state)


def flow_run_of(state: State[Any]) -> UUID:
    """The flow run that ended in a state."""
    found = state.state_details.flow_run_id
    assert found is not None
    return found


@pytest.fixture(scope="session", autouse=True)
def server() -> Iterator[dict[str, str]]:
    """A Prefect server, as environment variables for processes that use it."""
    with prefect_server():
        url = PREFECT_API_URL.value()
        assert url is not None
        yield {"PREFECT_API_URL": url}


@pytest.fixture(scope="session", autouse=True)
def quick_retries() -> Iterator[None]:
    """Do not wait before retries of a task."""
    tasks = (prepare_tokenizer, tokenize_corpus, encode, train, evaluate, evaluate_run, predict_texts, report)
    before = [task.retry_delay_seconds for task in tasks]
    for task in tasks:
        task.retry_delay_seconds = 0
    yield
    for task, delay in zip(tasks, before, strict=True):
        task.retry_delay_seconds = delay


@pytest.fixture
def config(raw: Path, tmp_path: Path) -> Path:
    """The file of the pipeline's job, with a store of the test's own."""
    return write_config(tmp_path / "job.yaml", small_values(raw, tmp_path / "store", **SETTINGS))


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ended]:
    """Run `headrace WORDS`, or a module's command line as `flows.X WORDS`, in this process, without signal handling.

    Its stages are forks of one process, while a command in a new process would load the libraries twice.
    """
    monkeypatch.setattr("flows.command.install_signal_handlers", lambda latest: None)

    def run(*words: Any) -> Ended:
        name, *arguments = map(str, words)
        capsys.readouterr()
        with cores(1):
            status = run_flow(name, arguments) if name.startswith("flows.") else headrace(name, *arguments)
        return Ended(status, *capsys.readouterr())

    def run_flow(module: str, arguments: list[str]) -> int:
        monkeypatch.setattr(sys, "argv", [module, *arguments])
        monkeypatch.delitem(sys.modules, module, raising=False)
        with pytest.raises(SystemExit) as end:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        return int(end.value.code or 0)

    return run


def pipeline_job(raw: Path, store: Path, **changes: Any) -> PipelineJob:
    return validate_job(PipelineJob, small_values(raw, store, **SETTINGS, **changes), "test")


def copy_data(source: Path, store: Path) -> Path:
    """A new store with another store's prepared data, and without its run."""
    for name in ("tokenizers", "shards"):
        shutil.copytree(source / name, store / name)
    return store


@pytest.fixture(scope="session")
def done(raw: Path, server: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Done:
    """The whole pipeline, run once; its store is read-only."""
    job = pipeline_job(raw, tmp_path_factory.mktemp("pipeline") / "store")
    with cores(1):
        return Done(job, data_to_model(job, return_state=True))
