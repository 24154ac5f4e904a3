"""`make up` and `make down`: repeatable, and nothing keeps running or is lost."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from prefect.client.schemas.objects import FlowRun
from prefect.deployments import run_deployment
from prefect.settings import PREFECT_API_URL, temporary_settings

from tests.flows.conftest import Done
from tests.processes import alive, descendants, free_port, wait_until
from tests.support import ROOT, small_values, steps_recorded

pytestmark = [pytest.mark.slow, pytest.mark.timeout(500)]


class Local:
    """The commands with a home and a port of the test's own."""

    def __init__(self, folder: Path) -> None:
        self.home, port = folder / "home", str(free_port())
        self.address = f"http://127.0.0.1:{port}/api"
        self.env = {**os.environ, "PREFECT_HOME": str(self.home), "PORT": port, "DO_NOT_TRACK": "1"}
        self.env.pop("PREFECT_API_URL", None)

    def say(self, command: str) -> str:
        ended = subprocess.run(
            [sys.executable, "deployments/local.py", command],
            cwd=ROOT,
            env=self.env,
            capture_output=True,
            text=True,
            check=False,
        )
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    def names(self, kind: str) -> list[str]:
        return sorted(each["name"] for each in httpx.post(f"{self.address}/{kind}/filter", json={}, timeout=30).json())

    def worker(self) -> int:
        return int((self.home / "worker.pid").read_text())


@pytest.fixture
def local(tmp_path: Path) -> Iterator[Local]:
    local = Local(tmp_path)
    try:
        yield local
    finally:
        local.say("down")


def test_up_can_be_repeated_and_down_stops_a_run_that_saves_its_state(local: Local, done: Done, tmp_path: Path) -> None:
    assert "make down" in local.say("up")
    before = {kind: local.names(kind) for kind in ("deployments", "work_pools", "automations")}
    worker = local.worker()
    local.say("up")
    assert {kind: local.names(kind) for kind in before} == before
    assert len(before["deployments"]) == 8 and before["work_pools"] == ["local"] and len(before["automations"]) == 2
    assert local.worker() == worker

    store = tmp_path / "store"
    raw = done.job.data.corpora[0].paths[0].removesuffix("/code/*.py")
    job = small_values(Path(raw), store, training__max_steps=100_000, training__save_every=None)
    with temporary_settings({PREFECT_API_URL: local.address}):
        started = run_deployment("data-to-model/local", parameters={"job": job}, timeout=0)
        assert isinstance(started, FlowRun)
    wait_until(lambda: steps_recorded(store) > 20, 240)
    family = [worker, *descendants(worker)]
    assert len(family) > 2
    assert "stopped the server" in local.say("down")
    ended = time.monotonic() + 60
    while any(map(alive, family)) and time.monotonic() < ended:
        time.sleep(0.2)
    assert not [pid for pid in family if alive(pid)]
    assert any(path.name.startswith("step-") for path in store.glob("runs/*/checkpoints/*")), "it saved before it ended"
    assert "stopped" not in local.say("down"), "nothing is left to be stopped"
