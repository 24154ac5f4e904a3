"""Tasks wait for temporary problems to pass, and crash after a time limit, so that they are rescheduled."""

import socket
from pathlib import Path
from typing import Any

import pytest
from prefect import flow, task
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowFilter, FlowFilterName
from prefect.client.schemas.objects import StateType
from prefect.runtime import flow_run
from prefect.settings import PREFECT_API_URL, get_current_settings, temporary_settings
from transformers import AutoConfig, BertForSequenceClassification

from flows.predict import predict
from flows.prepare_data import prepare_data
from flows.running import HEARTBEAT_SECONDS, TAG, run
from flows.work import status_of
from tasks.patience import RetriesExhausted, patient
from tests import ROOT
from tests.flows.serving import serving
from tests.http_server import Answering, http_server
from tests.processes import free_port, wait_until
from tests.s3 import S3Server
from tests.support import small_job, small_values
from tests.trainer.labelled_data import bert_folder
from trainer.common import transient
from trainer.common.errors import EXIT_BAD_INPUT, EXIT_PREEMPTED, CorpusError, Preempted, StorageError
from trainer.common.stopping import request_stop, stopping_when
from trainer.config.files import parse_yaml
from trainer.config.labelled import PredictJob
from trainer.store.storage import Store

FOUND: list[StorageError] = []
"""What a task meets, from the last to the first."""


@task
@patient
def meet(name: str) -> str:
    """Raise the next error, if there is one."""
    if FOUND:
        raise FOUND.pop()
    return f"met {name}"


@flow
def meeting(name: str) -> str:
    """One task."""
    return meet(name, return_state=True).result()


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transient, "FIRST_PAUSE", 0.05)
    monkeypatch.setenv(transient.PATIENCE, "2")
    FOUND.clear()


def test_a_task_waits_for_what_passes(caplog: pytest.LogCaptureFixture) -> None:
    FOUND.extend([StorageError("the disk is full", transient=True)] * 3)
    assert meeting("it") == "met it"
    assert sum("the disk is full (retrying in" in record.getMessage() for record in caplog.records) == 3


def test_what_does_not_pass_in_time_is_a_crash_and_75() -> None:
    FOUND.extend([StorageError("the store is away", transient=True)] * 10_000)
    with pytest.raises(RetriesExhausted, match=r"the store is away \(finished work is kept"):
        meeting("it", return_state=True)
    assert status_of(lambda: run(meeting, "it")) == EXIT_PREEMPTED


@task
@patient
def be_stopped() -> None:
    """A stage that is asked to stop with this process."""
    request_stop()
    raise Preempted("train: asked to stop")


@flow
def stopped(job: None) -> None:
    """One task."""
    be_stopped()


def test_a_requested_stop_is_a_crash_and_75(capsys: pytest.CaptureFixture[str]) -> None:
    with stopping_when(lambda: False):
        assert status_of(lambda: run(stopped, None)) == EXIT_PREEMPTED
    assert "asked to stop: finished work is kept; run it again to continue" in capsys.readouterr().err
    with get_client(sync_client=True) as client:
        (made,) = client.read_flow_runs(flow_filter=FlowFilter(name=FlowFilterName(any_=["stopped"])))
    assert made.state is not None and made.state.type is StateType.CRASHED


@flow
def heard(job: None) -> tuple[list[str], int | None]:
    """What the automation for silent runs needs."""
    return flow_run.tags or [], get_current_settings().flows.heartbeat_frequency


def test_a_command_that_is_killed_is_noticed_as_a_deployed_run_is() -> None:
    tags, seconds = run(heard, None)
    silent = parse_yaml((ROOT / "deployments" / "automations.yaml").read_text())["automations"][0]["trigger"]
    assert seconds == HEARTBEAT_SECONDS < silent["within"] / 3
    assert tags == [TAG] and TAG in str(silent["match_related"])


def test_what_a_person_must_change_is_a_failure_and_2() -> None:
    FOUND.append(StorageError("no such bucket"))
    state = meeting("it", return_state=True)
    assert state.type == StateType.FAILED
    FOUND.append(StorageError("no such bucket"))
    assert status_of(lambda: run(meeting, "it")) == EXIT_BAD_INPUT


def test_a_prefect_server_that_does_not_answer_is_told_in_one_message(capsys: pytest.CaptureFixture[str]) -> None:
    with temporary_settings({PREFECT_API_URL: (address := f"http://127.0.0.1:{free_port()}/api")}):
        assert status_of(lambda: run(meeting, "it")) == EXIT_PREEMPTED
    assert f"cannot reach the Prefect server at {address}" in capsys.readouterr().err


def test_a_prefect_server_that_wants_a_password_is_told_in_one_message(capsys: pytest.CaptureFixture[str]) -> None:
    class Guarded(Answering):
        def do_GET(self) -> None:
            self.answer(401)

    with http_server(Guarded) as address, temporary_settings({PREFECT_API_URL: f"{address}/api"}):
        assert status_of(lambda: run(meeting, "it")) == EXIT_BAD_INPUT
    assert (
        "refuses a command without its password (401): set PREFECT_API_AUTH_STRING=user:password"
        in capsys.readouterr().err
    )


def test_a_job_that_is_too_large_for_the_prefect_server_is_told_in_one_message(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert status_of(lambda: run(meeting, "x" * 600_000)) == EXIT_BAD_INPUT
    told = capsys.readouterr().err
    assert "refuses a job of 600,011 bytes as JSON; it takes at most 524,288: write long lists of paths as" in told
    assert "xxx" not in told


@pytest.mark.parametrize("command", ["prepare", "predict"])
def test_a_misspelt_host_of_raw_files_fails_at_once(command: str, raw: Path, tmp_path: Path) -> None:
    paths, store = ["http://misspelt.invalid/a.csv"], str(tmp_path / "store")
    try:
        socket.getaddrinfo("misspelt.invalid", 80)
    except socket.gaierror as error:
        if error.errno != socket.EAI_NONAME:
            pytest.skip("no name server answers here")
    flow: Any
    job: Any
    if command == "prepare":
        flow, job = prepare_data, small_job(raw, store, data__corpora=[{"name": "far", "paths": paths}]).preparation()
    else:
        model = bert_folder(tmp_path / "bert")
        BertForSequenceClassification(AutoConfig.from_pretrained(model)).save_pretrained(model)
        data = {"source": "csv", "paths": paths, "text_columns": ["text"]}
        flow, job = predict, PredictJob(store=store, model=str(model), data=data)
    with pytest.raises(CorpusError, match=r"misspelt\.invalid/a\.csv cannot be read"):
        run(flow, job)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_run_whose_store_stays_away_crashes_and_the_watchdog_has_it_finished_when_that_is_back(
    raw: Path, s3: S3Server, tmp_path: Path
) -> None:
    values = small_values(raw, s3.new_store(), training__max_steps=400, training__save_every=5)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
        patch.setenv(transient.PATIENCE, "5")
        with serving(tmp_path / "serving") as served:
            flow_run = served.run("data-to-model/pretrain", values)
            wait_until(lambda: any("/step-" in file.key for file in Store(values["store"]).walk("runs")), 240)
            with s3.away():
                wait_until(lambda: served.state_of(flow_run) == "CRASHED", 240)
            wait_until(lambda: served.state_of(flow_run) == "COMPLETED", 240)
