"""The whole pipeline on a real Prefect server."""

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from prefect.client.orchestration import get_client
from transformers import AutoModelForCausalLM

from tests.flows.conftest import Done
from tests.flows.looking import artifacts, latest_run, stamps, task_runs, task_states, waited_for
from tests.processes import Ended
from tests.support import write_config
from trainer.records.results import Outcome
from trainer.store.private_folders import STAGING, PrivateFolder

pytestmark = pytest.mark.slow


def test_the_pipeline_goes_from_raw_text_to_an_evaluated_model_and_its_report(done: Done) -> None:
    assert done.state.name == "Completed"
    outcome = done.state.result()
    assert isinstance(outcome, Outcome)
    assert outcome.evaluation is not None
    assert outcome.evaluation.total.figures["loss"] < 6.0
    assert [sample.prompt for sample in outcome.evaluation.samples] == ["def "]
    assert (done.store / outcome.report).read_text().startswith("<!")
    assert AutoModelForCausalLM.from_pretrained(done.store / outcome.run / "final").config.n_layer == 2


def test_its_tasks_are_named_and_run_in_order_once_each(done: Done) -> None:
    runs = task_runs(done.flow_run, "report")
    assert list(runs) == [
        "preflight", "prepare-tokenizer", "tokenize-code", "tokenize-docs", "plan-steps", "train", "evaluate", "report",
    ]  # fmt: skip
    assert {run.state_name for run in runs.values()} == {"Completed"}
    assert {run.run_count for run in runs.values()} == {1}


def test_the_graph_leads_from_the_text_to_the_report(done: Done) -> None:
    graph = waited_for(task_runs(done.flow_run, "report"))
    prepared = {"prepare-tokenizer", "tokenize-code", "tokenize-docs"}
    assert graph["tokenize-code"] == graph["tokenize-docs"] == {"prepare-tokenizer"}
    assert graph["plan-steps"] >= prepared
    assert graph["train"] >= {*prepared, "plan-steps"}
    assert graph["evaluate"] == {"train", "tokenize-code", "tokenize-docs"}
    assert graph["report"] == {"train", "evaluate"}


def test_progress_plan_scores_and_report_are_shown_on_the_server(done: Done) -> None:
    found = artifacts(done.flow_run)
    keyed = {artifact.key: artifact.type for artifact in found if artifact.key}
    assert keyed == {"data-mixture": "table", "step-plan": "table", "evaluation": "table", "report": "markdown"}
    progress = [artifact for artifact in found if artifact.type == "progress"]
    titles = {str(artifact.description).split(":")[0] for artifact in progress}
    assert {"train", "evaluate", "tokenize code", "tokenize docs"} <= titles
    trained = next(artifact for artifact in progress if str(artifact.description).startswith("train: 40 of 40 steps"))
    assert trained.data == 100.0


@pytest.mark.deep
def test_a_second_run_finds_everything_done_touches_nothing_and_prints_it(
    done: Done, command: Callable[..., Ended], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    outcome = done.state.result()
    watched = [done.store / "tokenizers", done.store / "shards", done.store / outcome.run]
    before = [stamps(folder) for folder in watched]
    killed = PrivateFolder(done.store / STAGING)
    os.close(killed._descriptor)  # unlocks it, as the end of its process would
    config = write_config(tmp_path / "job.yaml", done.job.model_dump(mode="json"))
    ended = command("flows.data_to_model", config)
    assert ended.status == 0, ended.stderr
    assert f"preflight: {outcome.run} is finished and evaluated: nothing to compute" in caplog.messages
    assert [stamps(folder) for folder in watched] == before
    assert not list((done.store / STAGING).iterdir())
    again = latest_run("data-to-model")
    assert again != done.flow_run
    with get_client(sync_client=True) as client:
        called = {client.read_flow_run(each).name for each in (again, done.flow_run)}
    assert called == {outcome.run.removeprefix("runs/")}, "flow runs are named after the run"
    names = task_states(again, "report")
    assert names == {
        "preflight": "Completed", "plan-steps": "Completed",
        **dict.fromkeys(["prepare-tokenizer", "tokenize-code", "tokenize-docs", "train", "evaluate", "report"],
        "Reused"),
    }  # fmt: skip
    assert f"model      {done.store}/{outcome.run}/final" in ended.stdout
    assert f"report     {done.store}/{outcome.report}" in ended.stdout
    assert f"loss {outcome.evaluation.total.figures['loss']:.4f}" in ended.stdout
    assert re.search(r"validation loss 5\.\d+ -> 5\.\d+ \(-\d+%\)", ended.stdout)
