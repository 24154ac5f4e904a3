"""The pipeline with curation and lm-eval, on a real Prefect server."""

from pathlib import Path

import pytest
from transformers import AutoTokenizer

from flows.data_to_model import data_to_model
from flows.finetune import finetune
from tests.flows.conftest import flow_run_of, pipeline_job
from tests.flows.looking import artifacts, task_runs, task_states
from tests.processes import cores
from tests.trainer.chats import chat_job, chat_model, write_chats
from tests.trainer.evaluation.harness_tasks import write_task
from trainer.records.evaluations import Result
from trainer.records.results import Outcome

pytestmark = [pytest.mark.slow, pytest.mark.deep]


def test_lm_eval_measures_after_the_evaluation_and_a_second_run_finds_all_done(raw: Path, tmp_path: Path) -> None:
    options = write_task(tmp_path / "tasks")
    job = pipeline_job(
        raw, tmp_path / "store",
        data__curation={"decontaminate": {"tasks": [f"{options.include_path}/tiny.yaml"], "least_words": 1}},
        evaluation__harness=options.model_dump(),
        promotion={"name": "lm", "metric": "harness/tiny/acc", "threshold": 0.0},
    )  # fmt: skip
    found = []
    for _ in range(2):
        with cores(1):
            state = data_to_model(job, return_state=True)
        assert state.name == "Completed", state.message
        found.append((state.result(), task_states(flow_run_of(state), "report")))
    (first, tasks), (second, again) = found
    assert isinstance(first, Outcome) and first.evaluation is not None and first.evaluation.harness is not None
    assert first.promotion is not None and first.promotion.passed
    assert first.evaluation.harness.asked.tasks["tiny"].kept_out, "its questions were compared with all text"
    assert first.evaluation.figures() == second.evaluation.figures()
    assert tasks["harness"] == "Completed" and {again[name] for name in ("curate", "harness", "report")} == {"Reused"}
    assert "harness" in {artifact.key for artifact in artifacts(flow_run_of(state))}


def test_a_model_that_answers_is_asked_too_and_a_champion_of_another_tokenizer_by_the_same_tasks(
    tmp_path: Path,
) -> None:
    options = write_task(tmp_path / "tasks").model_copy(update={"chat_template": True})
    chats, models = (
        write_chats(tmp_path / "chats"),
        [chat_model(tmp_path / "one"), chat_model(tmp_path / "other", vocab_size=600)],
    )
    tokenizer = AutoTokenizer.from_pretrained(models[1])
    tokenizer.add_tokens(["docstring"])
    tokenizer.save_pretrained(models[1])
    gate = {"name": "answers", "metric": "harness/tiny/acc", "threshold": 0.0, "better_by": 0.0}
    outcomes = []
    for model, limit in zip(models, (3, 2), strict=True):
        job = chat_job(
            chats, tmp_path / "store", model, training__epochs=1, promotion=gate,
            evaluation__harness={**options.model_dump(), "limit": limit},
        )  # fmt: skip
        with cores(1):
            state = finetune(job, return_state=True)
        assert state.name == "Completed", state.message
        outcomes.append(state.result())
    for outcome in outcomes:
        assert isinstance(outcome, Outcome) and isinstance(outcome.evaluation, Result)
        assert outcome.evaluation.figures().keys() >= {"bits_per_byte", "harness/tiny/acc"}
    first, second = (outcome.promotion for outcome in outcomes)
    assert first is not None and second is not None and first.passed
    assert "measured again" in second.reason and "tokenizer" not in second.reason
    assert list((tmp_path / "store/evaluations").glob("*-harness-*.json")), (
        "the champion was asked other questions before"
    )
    names = list(task_runs(flow_run_of(state), "judge"))
    assert [name for name in names if name in ("train", "evaluate", "harness", "report")][:4] == [
        "train", "evaluate", "harness", "report",
    ]  # fmt: skip
