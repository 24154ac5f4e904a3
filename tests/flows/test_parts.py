"""The parts of the pipeline as separate flows: prepare, train with kills, evaluate; bad input is not retried."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from prefect import Flow

from flows.data_to_model import data_to_model
from flows.dry_runs import DRY_RUNS
from flows.evaluate_model import evaluate_model
from flows.prepare_data import prepare_data
from flows.train_model import train_model
from tasks.stage import run_stage
from tests.flows.conftest import Done, copy_data, flow_run_of, pipeline_job
from tests.flows.looking import task_runs
from tests.processes import cores, meanwhile, stages, wait_until
from tests.support import curve, digests, final_bytes, steps_recorded
from trainer.common.errors import ArtifactError, ConfigError, PipelineError, RecordError
from trainer.config.files import override
from trainer.config.jobs import EvaluateJob
from trainer.kinds.pretraining.kind import evaluation_of

pytestmark = pytest.mark.slow


def refused(flow: Flow[Any, Any], job: Any, kind: type[PipelineError]) -> tuple[str, Any]:
    """The message and the state of a flow run that fails on its input."""
    with cores(1):
        state = flow(job, return_state=True)
    assert state.is_failed()
    error = state.result(raise_on_failure=False)
    assert type(error) is kind
    return str(error), state


def test_data_is_prepared_by_itself_and_the_same_as_in_the_pipeline(done: Done, raw: Path, tmp_path: Path) -> None:
    job = pipeline_job(raw, tmp_path / "store").preparation()
    with cores(1):
        state = prepare_data(job, return_state=True)
    assert state.name == "Completed"
    found, expected = (
        {name: digest for name, digest in digests(store, "shards").items() if name.endswith((".bin", ".idx", ".sums"))}
        for store in (tmp_path / "store", done.store)
    )
    assert found and found.items() <= expected.items()
    data = state.result()
    assert [ref.reused for ref in [data.tokenizer, *data.shards]] == [False] * 3


def test_training_needs_prepared_data(raw: Path, tmp_path: Path) -> None:
    message, _ = refused(train_model, pipeline_job(raw, tmp_path / "store"), ArtifactError)
    assert "holds no shards of these corpora's current files; run prepare-data first" in message
    assert not (tmp_path / "store" / "runs").exists()


@pytest.mark.deep
def test_a_trainer_that_is_killed_goes_on_and_ends_with_the_same_bytes(done: Done, raw: Path, tmp_path: Path) -> None:
    store = copy_data(done.store, tmp_path / "store")

    def kill() -> None:
        wait_until(lambda: steps_recorded(store) >= 13)
        (stage,) = stages(os.getpid())
        os.kill(stage, signal.SIGKILL)

    with meanwhile(kill), cores(1):
        state = train_model(pipeline_job(raw, store), return_state=True)
    assert state.name == "Completed"
    assert task_runs(flow_run_of(state), "train")["train"].run_count == 1, "it had advanced"
    assert final_bytes(store) == final_bytes(done.store)
    assert curve(store) == curve(done.store)


@pytest.mark.deep
def test_the_dry_run_of_an_evaluation_refuses_windows_beyond_the_models_positions(done: Done) -> None:
    job = EvaluateJob(store=str(done.store), checkpoint=done.state.result().run, context=100_000)
    with pytest.raises(ConfigError, match=r"context is 100000, but the model has \d+ positions"):
        DRY_RUNS[EvaluateJob](job)


@pytest.mark.deep
def test_a_model_of_two_ranks_is_evaluated_on_two_with_the_figures_of_one(
    done: Done, raw: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = copy_data(done.store, tmp_path / "store")
    asked: list[int] = []

    def noting(name: str, arguments: Any, show: Any, logger: Any, ranks: int = 1, *where: Any) -> dict[str, Any]:
        asked.append(ranks)
        return run_stage(name, arguments, show, logger, ranks, *where)

    monkeypatch.setattr("tasks.evaluation.run_stage", noting)
    job = override(
        pipeline_job(raw, store), ["training.processes=2", "training.max_steps=4", "training.evaluate_every=null"]
    )
    with cores(2):
        outcome = data_to_model(job)
    assert asked == [2]
    (store / outcome.run / "eval.json").unlink()
    with cores(1):
        alone = evaluate_model(evaluation_of(job, outcome.run))
    assert asked == [2, 1] and not alone.reused
    assert (alone.groups, alone.samples) == (outcome.evaluation.groups, outcome.evaluation.samples)
    with cores(2):
        asks = evaluation_of(job, outcome.run)
        silent = asks.evaluation.model_copy(update={"prompts": []})
        both = evaluate_model(asks.model_copy(update={"processes": 2, "evaluation": silent}))
    assert asked == [2, 1, 2] and both.groups == alone.groups


def test_bad_input_is_not_tried_again(raw: Path, tmp_path: Path) -> None:
    job, task = pipeline_job(raw, tmp_path / "store"), "prepare-tokenizer"
    (tmp_path / "bad.py").write_bytes(b"x = 1\n\xff\xfe\n")
    code = job.data.corpora[0].model_copy(update={"paths": [*job.data.corpora[0].paths, f"{tmp_path}/bad.py"]})
    data = job.data.model_copy(update={"corpora": [code, job.data.corpora[1]]})
    message, state = refused(prepare_data, job.preparation().model_copy(update={"data": data}), RecordError)
    assert "bad.py: byte 6 (0xff) is not valid UTF-8" in message
    runs = task_runs(flow_run_of(state), task)
    assert (runs[task].state_name, runs[task].run_count) == ("Failed", 1)
    assert task == list(runs)[-1], "nothing after it was begun"
