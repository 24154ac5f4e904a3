"""Trackers: shown the figures of a run, under one name however often it continues, and no reason for training to
end.
"""

import io
import logging
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tasks.stage import Worker
from tests.support import cpu_runtime, records, small_job
from trainer.common.errors import ConfigError
from trainer.common.progress import emit, silent
from trainer.config.training import Tracker
from trainer.kinds.pretraining.kind import identify
from trainer.kinds.pretraining.preflight import preflight
from trainer.pipelines.any_kind import train
from trainer.records.plans import PreparedData
from trainer.training import tracking
from trainer.training.logs import AsEvents
from trainer.training.tracking import MAKERS, Trackers

STEPS = 60
JOB = {"model": {"config": {"n_layer": 2}}, "training": {"learning_rate": 0.1, "micro_batch": None}, "data": {}}


class Kept:
    """A tracker that keeps what it is told in a list."""

    def __init__(self, project: str, run: str, fails_at: int | None = None) -> None:
        self.told: list[Any] = [(project, run)]
        self._fails_at = fails_at

    def start(self) -> None:
        print("a banner", end="")  # some libraries do not end their lines

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        self.told.append(values)

    def log(self, values: dict[str, float], step: int) -> None:
        if step == self._fails_at:
            raise OSError("no more room")
        self.told.append((step, values))

    def finish(self) -> None:
        self.told.append("finished")


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> dict[str, Kept]:
    """What is told to trackers in place of two of them; `mlflow` fails at step 2."""
    made: dict[str, Kept] = {}

    def maker(name: Tracker, fails_at: int | None) -> None:
        def make(project: str, run: str) -> Kept:
            made[name] = Kept(project, run, fails_at)
            return made[name]

        monkeypatch.setitem(MAKERS, name, make)

    maker("wandb", None)
    maker("mlflow", 2)
    return made


def test_trackers_are_shown_the_curves_and_the_hyperparameters(
    kept: dict[str, Kept], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING), Trackers(["mlflow", "wandb"], "job", "job-1", JOB) as trackers:
        for step in (1, 2, 3):
            trackers.show("train", step, {"loss": 3.0 - step, "attempts": step})
        trackers.show("evaluation", 3, {"loss": 1.0, "corpora": {"code": 2.0}, "tokens": 9})
    settings = {"model.config.n_layer": 2, "training.learning_rate": 0.1}
    steps = [(step, {"train/loss": 3.0 - step}) for step in (1, 2, 3)]
    measured = (3, {"evaluation/loss": 1.0, "evaluation/loss/code": 2.0})
    assert kept["wandb"].told == [("job", "job-1"), settings, *steps, measured, "finished"]
    assert kept["mlflow"].told == [("job", "job-1"), settings, steps[0]], "one that fails is told nothing more"
    assert caplog.messages == ["tracking: mlflow failed and is no longer used: OSError: no more room"]


def test_what_other_threads_say_while_a_tracker_is_shown_something_arrives(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """As the thread does that saves, or the one that renews the lease."""
    told, shown, said = logging.getLogger("other"), threading.Event(), threading.Event()

    class Slow(Kept):
        def log(self, values: dict[str, float], step: int) -> None:
            shown.set()
            assert said.wait(10)

    def warn() -> None:
        for number in range(STEPS):
            assert shown.wait(10)
            shown.clear()
            told.warning("warning %d", number)
            said.set()

    monkeypatch.setitem(MAKERS, "wandb", Slow)
    handler = AsEvents()
    told.addHandler(handler)
    try:
        with Trackers(["wandb"], "job", "job-1", JOB) as trackers, ThreadPoolExecutor(1) as pool:
            other = pool.submit(warn)
            for step in range(STEPS):
                trackers.show("train", step, {"loss": 1.0})
                said.clear()
            other.result()
    finally:
        told.removeHandler(handler)
    emit(sys.stdout, "result", value={"key": "made"}, last=True)
    caplog.clear()
    with caplog.at_level(logging.INFO):
        worker: Any = object.__new__(Worker)
        worker._said = io.StringIO(capsys.readouterr().out)
        outcome = worker._follow(lambda update: None, logging.getLogger("stage"))
    assert caplog.messages == ["a banner", *(f"warning {number}" for number in range(STEPS))]
    assert outcome == {"value": {"key": "made"}, "last": True}, "which the banner's line, without an end, does not hide"


def test_training_shows_a_tracker_what_it_records_and_is_the_same_run_without(
    kept: dict[str, Kept], raw: Path, stocked: Path, data: PreparedData
) -> None:
    job = small_job(raw, stocked, tracking=["wandb"])
    cpu_runtime()
    run = train(job, silent(), data).key
    (named, settings, *shown, end) = kept["wandb"].told
    assert (
        named == ("tiny", run.removeprefix("runs/"))
        and settings["training.learning_rate"] == 1e-3
        and end == "finished"
    )
    losses = [(step, values["train/loss"]) for step, values in shown if "train/loss" in values]
    assert losses == [(record["step"], record["loss"]) for record in records(stocked, "train")]
    assert identify(job, data) == identify(small_job(raw, stocked), data)


def test_a_tracker_that_is_not_installed_is_refused_at_the_start(
    raw: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracking.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="tracking lists trackio, which is not installed: pip install trackio"):
        preflight(small_job(raw, tmp_path / "store", tracking=["trackio"]), silent())


def test_a_job_names_trackers_that_there_are_and_each_once(raw: Path, tmp_path: Path) -> None:
    assert "tracking" not in small_job(raw, tmp_path).model_dump()
    for tracking_, said in ((["wandb", "wandb"], "occurs twice"), (["excel"], "tracking.0")):
        with pytest.raises(ConfigError, match=said):
            small_job(raw, tmp_path, tracking=tracking_)


@pytest.mark.deep
@pytest.mark.parametrize("variable", [None, "MLFLOW_EXPERIMENT_NAME", "MLFLOW_RUN_ID", "an empty one"])
def test_mlflow_goes_on_with_a_run_where_it_stood(
    variable: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where an operational setting is another one, which it does not take for a parameter, and in the experiment
    or the run that the environment names.
    """
    import mlflow  # takes seconds to load

    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    experiment = "job" if variable in (None, "an empty one") else "of the environment"
    named = {"MLFLOW_EXPERIMENT_NAME": experiment}
    if variable == "MLFLOW_RUN_ID":
        run_id = mlflow.MlflowClient().create_run(mlflow.create_experiment(experiment)).info.run_id
        named = {"MLFLOW_RUN_ID": run_id}
    cpu_runtime()
    for steps, save_every, numerator in (((1, 2, 3), 10, 1), ((3, 4), 20, 1), ((4, 5), 20, 2)):
        if variable == "an empty one":
            monkeypatch.setenv("MLFLOW_RUN_ID", "")
        elif variable is not None:
            monkeypatch.setenv(variable, named[variable])  # each time, because MLflow removes it
        weights = {"Q&A": 2.0}
        job = {**JOB, "training": {**JOB["training"], "save_every": save_every, "class_weights": weights}}
        with Trackers(["mlflow"], "job", "job-1", job) as trackers:
            assert trackers._trackers, "it has started"
            for step in steps:
                trackers.show("train", step, {"loss": numerator / step, "step_seconds": 0.1 * save_every})
    (run,) = mlflow.search_runs(search_all_experiments=True, output_format="list")
    assert mlflow.get_experiment(run.info.experiment_id).name == experiment
    assert (run.info.run_name, run.info.status) == ("job-1", "FINISHED")
    assert (run.data.params["training.save_every"], run.data.tags["training.save_every"]) == ("10", "20")
    assert run.data.params["training.class_weights.Q-A"] == "2.0"
    of_loss, of_speed = (
        [(each.step, each.value) for each in mlflow.MlflowClient().get_metric_history(run.info.run_id, name)]
        for name in ("train/loss", "train/step_seconds")
    )
    assert of_loss == [(1, 1), (2, 1 / 2), (3, 1 / 3), (4, 1 / 4), (4, 2 / 4), (5, 2 / 5)], (
        "a step with another loss is another"
    )
    assert [step for step, _ in of_speed] == [1, 2, 3, 4, 4, 5]


SENDS = """
from accelerate import PartialState
from trainer.training.tracking import MAKERS
PartialState(cpu=True)
MAKERS["mlflow"]("job", "job-1")
from mlflow.telemetry.utils import is_telemetry_disabled
print("sends nothing" if is_telemetry_disabled() else "sends telemetry")
"""


@pytest.mark.deep
@pytest.mark.parametrize(("wanted", "does"), [(None, "sends nothing"), ("false", "sends telemetry")])
def test_mlflow_sends_no_telemetry_unless_it_is_wanted(wanted: str | None, does: str, tmp_path: Path) -> None:
    """In a process of its own, because MLflow starts its telemetry when it is imported, and sends none in tests."""
    quiet = ("MLFLOW_DISABLE_TELEMETRY", "PYTEST_CURRENT_TEST", "CI", "GITHUB_ACTIONS")
    env = {name: value for name, value in os.environ.items() if name not in quiet}
    env |= {"DO_NOT_TRACK": "1", "MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path}/mlflow.db"}
    env |= {} if wanted is None else {"MLFLOW_DISABLE_TELEMETRY": wanted}
    done = subprocess.run([sys.executable, "-c", SENDS], env=env, cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.strip() == does, done.stderr


@pytest.mark.deep
def test_wandb_keeps_a_run_here_under_its_name_each_time_it_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    cpu_runtime()
    for mode, steps in ((None, (1, 2)), ("", (3, 4))):  # an empty variable is none
        monkeypatch.delenv("WANDB_MODE", raising=False) if mode is None else monkeypatch.setenv("WANDB_MODE", mode)
        with Trackers(["wandb"], "job", "job-1", JOB) as trackers:
            assert trackers._trackers, "it has started"
            for step in steps:
                trackers.show("train", step, {"loss": float(step)})
    kept_here = list(tmp_path.rglob("run-job-1.wandb"))
    assert len(kept_here) == 2, "each time a file, which `wandb sync` puts into the one run of this name"
    assert all(path.stat().st_size and path.parent.name.startswith("offline-run-") for path in kept_here)
