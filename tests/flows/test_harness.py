"""The pipeline with curation and lm-eval, on a real Prefect server."""

from pathlib import Path

import pytest

from flows.data_to_model import data_to_model
from tests.flows.conftest import flow_run_of, pipeline_job
from tests.flows.looking import artifacts, task_runs
from tests.processes import cores
from tests.trainer.harness.making import write_task
from trainer.records.results import Outcome

pytestmark = [pytest.mark.slow, pytest.mark.deep]


def test_lm_eval_measures_after_the_evaluation_and_a_second_run_finds_all_done(raw: Path, tmp_path: Path) -> None:
    options = write_task(tmp_path / "tasks")
    job = pipeline_job(
        raw, tmp_path / "store",
        data__curation={"decontaminate": {"tasks": [f"{options.include_path}/tiny.yaml"], "least_words": 1}},
        evaluation__harness=options.model_dump(), promotion={"name": "lm", "metric": "harness/tiny/acc", "threshold": 0.0},
    )  # fmt: skip
    found = []
    for _ in range(2):
        with cores(1):
            state = data_to_model(job, return_state=True)
        assert state.name == "Completed", state.message
        found.append((state.result(), {name: run.state_name for name, run in task_runs(flow_run_of(state), "report").items()}))
    (first, tasks), (second, again) = found
    assert isinstance(first, Outcome) and first.evaluation is not None and first.evaluation.harness is not None
    assert first.promotion is not None and first.promotion.passed
    assert first.evaluation.harness.tasks["tiny"].kept_out, "its questions were compared with all text"
    assert first.evaluation.figures() == second.evaluation.figures()
    assert tasks["harness"] == "Completed" and {again[name] for name in ("curate", "harness", "report")} == {"Reused"}
    assert "harness" in {artifact.key for artifact in artifacts(flow_run_of(state))}
