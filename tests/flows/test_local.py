"""`make up` and `make down`: repeatable, and nothing keeps running or is lost."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from prefect.client.schemas.objects import FlowRun
from prefect.deployments import run_deployment
from prefect.settings import PREFECT_API_URL, temporary_settings

from tests.flows.conftest import Done
from tests.flows.local_stack import Local
from tests.processes import alive, descendants, wait_until
from tests.support import ROOT, small_values, steps_recorded
from trainer.config.unique_keys import parse_yaml

pytestmark = [pytest.mark.slow, pytest.mark.timeout(500)]


@pytest.fixture
def local(tmp_path: Path) -> Iterator[Local]:
    local = Local(tmp_path)
    try:
        yield local
    finally:
        local.say("down")


@pytest.mark.long
def test_up_can_be_repeated_and_down_stops_a_run_that_saves_its_state(local: Local, done: Done, tmp_path: Path) -> None:
    assert "`headrace down` (or `make down`) stops both" in local.say("up")
    before = {kind: local.names(kind) for kind in ("deployments", "work_pools", "automations", "variables")}
    worker = local.worker()
    assert local.schedules() == [False, False], "off by default"
    local.say("up", SCHEDULES="on")
    assert local.schedules() == [True, True]
    local.say("up")
    assert local.schedules() == [True, True], "they stay as they are"
    assert {kind: local.names(kind) for kind in before} == before
    deployed = parse_yaml((ROOT / "deployments" / "prefect.yaml").read_text())["deployments"]
    assert len(before["deployments"]) == len(deployed) and before["work_pools"] == ["local"] and len(before["automations"]) == 2
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
    assert local.say("down") == f"nothing was running that was started with PREFECT_HOME={local.home}\n"


def test_it_is_not_open_to_other_machines_without_a_password(tmp_path: Path) -> None:
    open_to_all = Local(tmp_path, LISTEN="0.0.0.0")
    open_to_all.env.pop("PREFECT_SERVER_API_AUTH_STRING", None)
    refused = open_to_all.python("deployments/local.py", "up")
    assert refused.returncode == 2 and "PREFECT_SERVER_API_AUTH_STRING=user:password" in refused.stderr
    assert not open_to_all.home.exists()
