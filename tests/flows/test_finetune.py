"""Fine-tuning as a flow: on a model that the pipeline pretrained, through a crash, and again."""

import json
import os
import signal
import threading
from pathlib import Path

import pytest

from flows.finetune import finetune
from tests.flows.conftest import Done, flow_run_of
from tests.flows.looking import artifacts, latest_run, task_runs
from tests.processes import children, command_line, cores, start_module, wait_until
from tests.support import digests, write_config
from tests.trainer.labelled_pairs import finetune_job, finetune_values, write_pairs

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pairs(tmp_path_factory.mktemp("pairs"))


@pytest.fixture(scope="module")
def model(done: Done) -> Path:
    """What the pipeline pretrained."""
    return done.store / done.state.result().run / "final"


def test_it_survives_the_death_of_its_trainer_is_shown_and_is_found_done_the_second_time(
    pairs: Path, model: Path, tmp_path: Path, server: dict[str, str]
) -> None:
    job = finetune_job(pairs, tmp_path / "store", model, training__save_every=1, run="pairs")
    checkpoints = tmp_path / "store" / "runs" / "pairs" / "checkpoint-last"

    def kill_trainer() -> None:
        wait_until(lambda: checkpoints.exists() and json.loads(checkpoints.read_text())["step"] > 5)
        (trainer,) = [pid for pid in children(os.getpid()) if "trainer.child" in command_line(pid)]
        os.kill(trainer, signal.SIGKILL)

    killer = threading.Thread(target=kill_trainer)
    killer.start()
    with cores(1):
        state = finetune(job, return_state=True)
    killer.join()
    assert state.name == "Completed"
    outcome, flow_run = state.result(), flow_run_of(state)
    runs = task_runs(flow_run)
    assert list(runs) == ["preflight", "encode", "plan-steps", "train", "evaluate", "report"]
    assert runs["train"].run_count == 2
    keyed = {artifact.key: artifact for artifact in artifacts(flow_run) if artifact.key}
    assert set(keyed) == {"labelled-data", "step-plan", "evaluation", "report"}
    assert "text from summary and code; label became labels; dropped: none" in (keyed["labelled-data"].description or "")
    assert json.loads(str(keyed["evaluation"].data))[0].keys() == {"split", "loss", "accuracy", "f1"}

    before = digests(tmp_path / "store")
    values = finetune_values(pairs, tmp_path / "store", model, training__save_every=1, run="pairs")
    config = write_config(tmp_path / "job.yaml", values)
    ended = start_module(tmp_path / "said", "flows.finetune", config, env=server).wait()
    assert ended.status == 0, ended.stderr
    assert digests(tmp_path / "store") == before
    names = {name: run.state_name for name, run in task_runs(latest_run("finetune")).items()}
    assert names == {
        "preflight": "Completed", "plan-steps": "Completed",
        **dict.fromkeys(["encode", "train", "evaluate", "report"], "Reused"),
    }  # fmt: skip
    assert f"{outcome.run}/predictions/test.jsonl" in ended.stdout
    assert "validation accuracy 0." in ended.stdout


def test_a_dry_run_says_the_plan_once_the_data_is_encoded(pairs: Path, model: Path, tmp_path: Path) -> None:
    config = write_config(tmp_path / "job.yaml", finetune_values(pairs, tmp_path / "store", model))
    ended = start_module(tmp_path / "said", "flows.finetune", config, "--dry-run").wait()
    assert ended.status == 0, ended.stderr
    assert "metrics         accuracy, f1" in ended.stdout
    assert "steps planned, once the data is encoded" in ended.stdout
    assert not (tmp_path / "store" / "runs").exists()
