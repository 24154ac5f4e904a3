"""The fine-tuning flow on a model that the pipeline pretrained, and the flows that use what it made."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from flows.dry_runs import dry_run
from flows.evaluate_model import evaluate_model
from flows.finetune import finetune
from flows.predict import predict
from tests.flows.conftest import Done, flow_run_of
from tests.flows.looking import artifacts, latest_run, task_runs, task_states
from tests.processes import Ended, cores, finish
from tests.support import digests, lasting_digests, write_config
from tests.trainer.labelled_pairs import finetune_job, finetune_values
from trainer.common.errors import ArtifactError, CorpusError
from trainer.config.files import validate_job
from trainer.config.jobs import EvaluateJob
from trainer.config.labelled import PredictJob

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def model(done: Done) -> Path:
    """The model that the pipeline pretrained."""
    return done.store / done.state.result().run / "final"


@pytest.mark.deep
def test_it_is_shown_and_is_found_done_the_second_time(
    pairs: Path, model: Path, tmp_path: Path, command: Callable[..., Ended]
) -> None:
    job = finetune_job(pairs, tmp_path / "store", model, run="pairs")
    with cores(1):
        state = finetune(job, return_state=True)
    assert state.name == "Completed"
    outcome, flow_run = state.result(), flow_run_of(state)
    assert list(task_runs(flow_run, "report")) == ["preflight", "encode", "plan-steps", "train", "evaluate", "report"]
    keyed = {artifact.key: artifact for artifact in artifacts(flow_run) if artifact.key}
    assert set(keyed) == {"labelled-data", "step-plan", "evaluation", "report"}
    assert "text columns: summary and code; label columns: label; unused columns: none" in (
        keyed["labelled-data"].description or ""
    )
    assert json.loads(str(keyed["evaluation"].data))[0].keys() == {"split", "loss", "accuracy", "f1 of 'match'"}

    before = lasting_digests(tmp_path / "store")
    values = finetune_values(pairs, tmp_path / "store", model, run="pairs")
    config = write_config(tmp_path / "job.yaml", values)
    ended = command("flows.finetune", config)
    assert ended.status == 0, ended.stderr
    assert lasting_digests(tmp_path / "store") == before
    names = task_states(latest_run("finetune"), "report")
    assert names == {
        "preflight": "Completed", "plan-steps": "Completed",
        **dict.fromkeys(["encode", "train", "evaluate", "report"], "Reused"),
    }  # fmt: skip
    assert f"{outcome.run}/predictions/test.jsonl" in ended.stdout
    assert "validation accuracy 0." in ended.stdout
    closing = [line.split()[0] for line in ended.stdout.splitlines()[-3:]]
    assert closing == ["metrics", "report", "model"], "it ends as a pretrained run does"


@pytest.mark.deep
def test_other_test_files_have_the_finished_run_evaluated_anew(
    tuned: Path, pairs: Path, model: Path, tmp_path: Path
) -> None:
    store = Path(shutil.copytree(tuned, tmp_path / "store"))
    other = tmp_path / "other.jsonl"
    other.write_text(
        "".join((pairs / "test.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)[:5]), encoding="utf-8"
    )
    job = finetune_job(pairs, store, model, training__epochs=1, run="pairs", data__test=[str(other)])
    trained = digests(store / "runs" / "pairs", "checkpoints", "metrics.jsonl")
    for said in ("Completed", "Reused"):
        with cores(1):
            state = finetune(job, return_state=True)
        names = task_states(flow_run_of(state), "report")
        assert names == {
            "preflight": "Completed", "encode": said, "plan-steps": "Completed", "train": "Reused", "evaluate": said,
            "report": said,
        }  # fmt: skip
        assert state.result().run == "runs/pairs"
    assert digests(store / "runs" / "pairs", "checkpoints", "metrics.jsonl") == trained
    predicted = (store / "runs" / "pairs" / "predictions" / "test.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(predicted) == 5


@pytest.fixture(scope="module")
def tuned(pairs: Path, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a fine-tuned run named `pairs`."""
    folder = tmp_path_factory.mktemp("tuned")
    config = write_config(
        folder / "job.yaml", finetune_values(pairs, folder / "store", model, training__epochs=1, run="pairs")
    )
    finish(folder / "said", config)
    return folder / "store"


@pytest.mark.deep
def test_any_of_its_checkpoints_is_evaluated_and_shown(
    tuned: Path, tmp_path: Path, command: Callable[..., Ended], caplog: pytest.LogCaptureFixture
) -> None:
    values = {"store": str(tuned), "checkpoint": "runs/pairs/checkpoint-last", "evaluation": {"prompts": ["def "]}}
    config = write_config(tmp_path / "job.yaml", values)
    ended = command("flows.evaluate_model", config)
    assert ended.status == 0, ended
    assert re.search(r"^validation loss 0\.\d+, accuracy 0\.\d+, f1 of 'match' 0\.\d+$", ended.stdout, re.MULTILINE)
    assert "evaluation.prompts has no effect on it" in caplog.text
    (artifact,) = [each for each in artifacts(latest_run("evaluate-model")) if each.key == "evaluation"]
    told = r"runs/pairs/checkpoint-last: loss 0\.\d+, accuracy 0\.\d+, f1 of 'match' 0\.\d+"
    assert re.fullmatch(told, str(artifact.description))
    assert json.loads(str(artifact.data))[0].keys() == {"split", "loss", "accuracy", "f1 of 'match'"}
    with cores(1):
        state = evaluate_model(
            EvaluateJob(store=str(tuned), checkpoint="runs/pairs/checkpoint-last"), return_state=True
        )
    assert task_states(flow_run_of(state), "evaluate") == {"evaluate": "Reused"}


@pytest.mark.deep
def test_it_predicts_new_texts_which_are_shown_and_found_done_the_second_time(
    tuned: Path, pairs: Path, tmp_path: Path, command: Callable[..., Ended]
) -> None:
    data = {"source": "jsonl", "paths": [f"{pairs}/test.jsonl"], "id_column": "id"}
    config = write_config(tmp_path / "job.yaml", {"store": str(tuned), "model": "pairs", "data": data})
    dry = command("flows.predict", config, "--dry-run")
    assert dry.status == 0 and "would predict 1 file with pairs" in dry.stdout, dry
    assert not (tuned / "predictions").exists()
    ended = command("flows.predict", config)
    assert ended.status == 0, ended
    (made,) = tuned.glob("predictions/*/predictions.jsonl")
    assert made.read_bytes() == (tuned / "runs/pairs/predictions/test.jsonl").read_bytes()
    assert f"predictions {made}\n" in ended.stdout
    with cores(1):
        state = predict(
            validate_job(PredictJob, {"store": str(tuned), "model": "pairs", "data": data}, "test"), return_state=True
        )
    assert task_states(flow_run_of(state), "predict") == {"predict": "Reused"}
    (artifact,) = [each for each in artifacts(flow_run_of(state)) if each.key == "predictions"]
    assert [row["predicted"] for row in json.loads(str(artifact.data))] == ["other", "match"]


@pytest.mark.deep
def test_the_dry_run_of_an_evaluation_reads_its_new_labelled_files(
    tuned: Path, pairs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = (pairs / "train.jsonl").read_text().splitlines(keepends=True)[:20]
    values = {"store": str(tuned), "checkpoint": "pairs", "labelled": [str(tmp_path / "new.jsonl")]}
    job = validate_job(EvaluateJob, values, "test")
    (tmp_path / "new.jsonl").write_text("".join(rows))
    dry_run(job)
    assert (
        f"would evaluate pairs in {tuned}, on 20 labelled examples of {tmp_path}/new.jsonl" in capsys.readouterr().out
    )
    (tmp_path / "new.jsonl").write_text('{"summary": "a", "code": "b"}\n')
    with pytest.raises(CorpusError, match="has no column 'label'"):
        dry_run(job)
    with pytest.raises(ArtifactError, match="nobody"):
        dry_run(job.model_copy(update={"checkpoint": "nobody"}))


def test_a_dry_run_looks_at_the_data_and_says_the_plan(
    pairs: Path, model: Path, tmp_path: Path, command: Callable[..., Ended]
) -> None:
    config = write_config(tmp_path / "job.yaml", finetune_values(pairs, tmp_path / "store", model))
    ended = command("flows.finetune", config, "--dry-run")
    assert ended.status == 0, ended.stderr
    assert "metrics         accuracy, f1" in ended.stdout
    assert re.search(r"^train +[\d,]+ examples\b", ended.stdout, re.MULTILINE)
    assert re.search(r"^steps +[\d,]+ of \d+ examples each, on 1 rank$", ended.stdout, re.MULTILINE)
    assert not (tmp_path / "store" / "runs").exists()
