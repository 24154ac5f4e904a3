"""The whole pipeline on a real Prefect server."""

import pytest
from transformers import AutoModelForCausalLM

from flows.data_to_model import data_to_model
from tests.flows.conftest import Done
from tests.flows.looking import artifacts, stamps, task_runs
from tests.processes import cores
from trainer.results import Outcome

pytestmark = pytest.mark.slow


def test_the_pipeline_goes_from_raw_text_to_an_evaluated_model_and_its_report(done: Done) -> None:
    assert done.state.name == "Completed"
    outcome = done.state.result()
    assert isinstance(outcome, Outcome)
    assert outcome.evaluation is not None
    assert outcome.evaluation.scores.total.loss < 6.0
    assert [sample.prompt for sample in outcome.evaluation.samples] == ["def "]
    assert (done.store / outcome.report).read_text().startswith("<!")
    assert AutoModelForCausalLM.from_pretrained(done.store / outcome.run / "final").config.n_layer == 2


def test_its_tasks_are_named_and_run_in_order_once_each(done: Done) -> None:
    runs = task_runs(done.state)
    assert list(runs) == [
        "preflight", "prepare-tokenizer", "tokenize-code", "tokenize-docs", "plan-steps", "train", "evaluate", "report",
    ]  # fmt: skip
    assert {run.state_name for run in runs.values()} == {"Completed"}
    assert {run.run_count for run in runs.values()} == {1}


def test_progress_plan_scores_and_report_are_shown_on_the_server(done: Done) -> None:
    found = artifacts(done.state)
    keyed = {artifact.key: artifact.type for artifact in found if artifact.key}
    assert keyed == {"data-mixture": "table", "step-plan": "table", "evaluation": "table", "report": "markdown"}
    progress = [artifact for artifact in found if artifact.type == "progress"]
    titles = {str(artifact.description).split(":")[0] for artifact in progress}
    assert {"train", "evaluate", "tokenize code", "tokenize docs"} <= titles
    trained = next(artifact for artifact in progress if str(artifact.description).startswith("train: 40 step of 40 step"))
    assert trained.data == 100.0


def test_a_second_run_finds_everything_done_and_touches_nothing(done: Done) -> None:
    outcome = done.state.result()
    watched = [done.store / "tokenizers", done.store / "shards", done.store / outcome.run]
    before = [stamps(folder) for folder in watched]
    with cores(1):
        state = data_to_model(done.job, return_state=True)
    assert state.name == "Completed"
    assert [stamps(folder) for folder in watched] == before
    again = state.result()
    assert (again.run, again.report) == (outcome.run, outcome.report)
    assert again.evaluation.scores == outcome.evaluation.scores
    names = {name: run.state_name for name, run in task_runs(state).items()}
    assert names == {
        "preflight": "Completed", "plan-steps": "Completed",
        **dict.fromkeys(["prepare-tokenizer", "tokenize-code", "tokenize-docs", "train", "evaluate", "report"], "Reused"),
    }  # fmt: skip
