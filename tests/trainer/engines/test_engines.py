"""What can be told of engines without a cluster: their settings, what a local job records, and that Ray may be
missing.
"""

import signal
import subprocess
import sys
import time
from pathlib import Path
from threading import Timer
from typing import Any

import pytest

from tests import ROOT
from tests.support import small_job, small_values
from trainer.common.errors import ConfigError
from trainer.common.progress import silent
from trainer.common.stopping import StopRequested, check_stop, stop_requested, stopping_when, wait
from trainer.config.engines import LocalEngine, RayEngine
from trainer.config.files import validate_job
from trainer.config.jobs import PipelineJob
from trainer.engines import executors
from trainer.engines.ray_cluster import joined
from trainer.jobs import train
from trainer.kinds.kind import identify_run
from trainer.kinds.pretraining.preflight import preflight
from trainer.records.lease import STALE_SECONDS, Lease
from trainer.records.plans import PreparedData
from trainer.records.sealed import read_sealed, write_sealed
from trainer.store.storage import Store
from trainer.training.identity import recorded

RUN = "runs/on-a-cluster"


def of_engine(engine: Any) -> str:
    """What is said of a job with a wrong engine."""
    with pytest.raises(ConfigError) as caught:
        validate_job(PipelineJob, {**small_values(Path("raw"), "store"), "engine": engine}, "job.yaml")
    return str(caught.value)


@pytest.mark.parametrize(
    ("engine", "problem"),
    [
        ({"kind": "rey"}, "engine.kind: expected 'local' or 'ray', found 'rey'"),
        ({"address": "auto"}, "engine.kind: expected 'local' or 'ray', found nothing"),
        ("ray", "engine: expected keys with values, found 'ray'; known keys are kind, address, "),
        ({"kind": "ray", "adress": "x:1"}, "engine.adress: unknown key; did you mean 'address'?"),
        ({"kind": "local", "address": "x:1"}, "engine.address: requires another engine.kind"),
        ({"kind": "ray", "min_workers": 0}, "engine.min_workers: expected at least 1, found 0"),
        (
            {"kind": "ray", "address": "ray://head:10001"},
            "run on a node of the cluster and set HOST:PORT of its head",
        ),
    ],
)
def test_a_wrong_engine_is_refused_by_its_place(engine: Any, problem: str) -> None:
    assert problem in of_engine(engine)


def test_a_job_runs_on_its_own_machine_unless_it_says_otherwise(tmp_path: Path) -> None:
    assert small_job(tmp_path, "store").engine == LocalEngine()
    job = validate_job(PipelineJob, small_values(tmp_path, "store", engine__kind="ray"), "job.yaml")
    assert job.engine == RayEngine(kind="ray")
    assert job.preparation().engine == job.engine


def test_the_engine_is_no_part_of_a_run(raw: Path, stocked: Path, data: PreparedData) -> None:
    here, there = small_job(raw, stocked), small_job(raw, stocked, engine__kind="ray")
    assert identify_run(here, data) == identify_run(there, data)
    assert recorded(here) == recorded(there)
    assert "engine" not in recorded(here), "runs of before there were engines are found as they were recorded"


def test_without_ray_the_preflight_says_what_to_install(
    raw: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    job = small_job(raw, tmp_path / "store", engine__kind="ray")
    with pytest.raises(
        ConfigError, match=r"engine\.kind is ray, but Ray cannot be imported .*; run `pip install 'headrace\[ray\]'`"
    ):
        preflight(job, silent())


def test_what_a_launcher_has_started_is_no_clusters(raw: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"engine\.kind is 'ray', but `python -m trainer` trains in this process"):
        train(small_job(raw, tmp_path / "store", engine__kind="ray"))


def test_an_address_without_a_port_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", type(sys)("ray"))
    with (
        pytest.raises(ConfigError, match=r"engine\.address is 'head'; expected HOST:PORT"),
        joined(RayEngine(kind="ray", address="head")),
    ):
        pass


def test_a_worker_stops_when_it_is_told_to() -> None:
    asked: list[float] = []
    with stopping_when(lambda: bool(asked)):
        check_stop()
        asked.append(time.monotonic())
        wait(30.0)
        assert time.monotonic() - asked[0] < 5.0
        assert stop_requested()
        with pytest.raises(StopRequested):
            check_stop()
    assert not stop_requested()


def test_a_worker_that_is_told_to_stop_before_it_begins_does_not_begin() -> None:
    with stopping_when(lambda: True), pytest.raises(StopRequested):
        check_stop()


HOLDS = """
import sys, time
from trainer.engines.executors import enter_group
from trainer.records.lease import Lease
from trainer.store.storage import Store

group, store, run = sys.argv[1:]
enter_group(group)
with Lease(Store(store), run):
    print("held", flush=True)
    time.sleep(60)
"""


def elsewhere(store: Store, group: str | None) -> None:
    """Write the lease of a process of another machine that has shown life just now."""
    with Lease(store, RUN):
        held = read_sealed(store, f"{RUN}/lease.json")
    assert held is not None
    held |= {"id": "another", "machine": "another", "host": "elsewhere"} | ({"group": group} if group else {})
    write_sealed(store, f"{RUN}/lease.json", held)


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> str:
    """This process is a worker of a group."""
    monkeypatch.setattr(executors, "_own", None)
    name = executors.group_name("cluster", "stage")
    executors.enter_group(name)
    return name


def test_a_lease_bears_the_group_of_its_holder(empty_store: Store, worker: str) -> None:
    with Lease(empty_store, RUN):
        held = read_sealed(empty_store, f"{RUN}/lease.json")
    assert held is not None and held["group"] == worker


def test_the_lease_of_a_lost_rank_is_taken_over_at_once_when_its_group_begins_again(
    empty_store: Store, worker: str
) -> None:
    elsewhere(empty_store, worker)
    begun = time.monotonic()
    with Lease(empty_store, RUN):
        assert time.monotonic() - begun < 5.0 < STALE_SECONDS


def test_a_rank_here_that_outlives_its_killed_stage_is_waited_for(
    empty_store: Store, worker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    earlier = executors.group_name("cluster", "a stage that was killed")
    monkeypatch.setattr(executors, "_has_actor", lambda group: group != earlier)
    command = [sys.executable, "-c", HOLDS, earlier, empty_store.url, RUN]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as rank:
        assert rank.stdout is not None and rank.stdout.readline()
        Timer(1.5, rank.kill).start()
        with Lease(empty_store, RUN):
            assert rank.wait() == -signal.SIGKILL


def test_the_lease_of_another_clusters_worker_is_waited_for(empty_store: Store, worker: str) -> None:
    assert executors.is_gone(worker)
    assert not executors.is_gone(executors.group_name("another", "stage"))
    assert not executors.is_gone(None)
