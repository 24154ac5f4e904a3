"""Everything is created as by Prefect's own commands; what a person changed on the server stays when it is updated."""

import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from prefect.client.base import PrefectHttpxSyncClient
from prefect.client.orchestration import get_client
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.states import Running

from deployments.registration import ENGINE, watch
from tests import ROOT
from tests.flows.serving import REGISTER, Serving
from tests.processes import wait_until
from tests.support import small_values
from trainer import __version__

pytestmark = [pytest.mark.slow, pytest.mark.timeout(500)]


@pytest.fixture
def deployed(tmp_path: Path) -> Iterator[Serving]:
    """A server on which everything is deployed, without a worker."""
    found = Serving(tmp_path)
    try:
        found.deploy(by_hand=False)
        yield found
    finally:
        found.kill_server()


@pytest.mark.deep
def test_what_a_person_changed_on_the_server_is_kept(deployed: Serving) -> None:
    with PrefectHttpxSyncClient(base_url=deployed.address, timeout=60) as client:  # asks a busy server again

        def ask(method: str, path: str, **request: Any) -> Any:
            answer = client.request(method, path, **request).raise_for_status()
            return answer.json() if answer.content else None

        def found() -> dict[str, Any]:
            deployment: dict[str, Any] = ask("GET", "/deployments/name/data-to-model/pretrain")
            return deployment

        def state() -> dict[str, Any]:
            """What people change."""
            now, names = found(), ("schedule", "active", "parameters", "slug")
            return {
                "parameters": now["parameters"],
                "env": now["job_variables"]["env"],
                "limit": now["global_concurrency_limit"]["limit"],
                "paused": now["paused"],
                "schedules": sorted(
                    ({name: each[name] for name in names} for each in now["schedules"]),
                    key=lambda each: str(each["slug"]),
                ),
                "pool": ask("GET", "/work_pools/local")["concurrency_limit"],
                "automations": {each["name"]: each["enabled"] for each in ask("POST", "/automations/filter", json={})},
            }

        new = found()
        path, (weekly,) = f"/deployments/{new['id']}", new["schedules"]
        job = {**new["parameters"]["job"], "name": "mine"}
        env = {**new["job_variables"]["env"], "DO_NOT_TRACK": "0", "MINE": "1"}
        variables = {**new["job_variables"], "env": env, "command": "an earlier version's"}
        ask("PATCH", path, json={"parameters": {"job": job}, "job_variables": variables, "concurrency_limit": 2})
        ask("PATCH", path, json={"description": "an earlier version's", "paused": True})
        at = {"cron": "30 6 * * *", "timezone": "Europe/Berlin"}
        ask("PATCH", f"{path}/schedules/{weekly['id']}", json={"active": True, "schedule": at})
        ask("POST", f"{path}/schedules", json=[{"active": True, "schedule": {"interval": 90000}}])  # as in the UI
        ask("PATCH", "/work_pools/local", json={"concurrency_limit": 3, "is_paused": True})
        for each in ask("POST", "/automations/filter", json={}):
            ask("PATCH", f"/automations/{each['id']}", json={"enabled": False})
        before = state()
        assert (before["limit"], before["paused"], before["pool"]) == (2, True, 3)
        assert not any(before["automations"].values())
        assert [each["active"] for each in before["schedules"]] == [True, True]

        deployed.deploy(by_hand=False)
        assert state() == before
        again = found()
        assert again["job_variables"]["command"] == ENGINE and again["description"] == new["description"]
        assert not ask("GET", "/work_pools/local")["is_paused"]

        former = {"type": "object", "properties": {"job": {"type": "object"}}}
        ask("PATCH", path, json={"parameter_openapi_schema": former, "parameters": {"job": {**job, "former": 1}}})
        deployed.deploy(by_hand=False)
        assert found()["parameters"] == new["parameters"], "a setting that this version does not have is not kept"

        (present,) = [each["id"] for each in found()["schedules"] if each["slug"] == weekly["slug"]]
        ask("DELETE", f"{path}/schedules/{present}")
        kept = state()["schedules"]
        assert len(kept) == 1
        deployed.deploy(by_hand=False)
        assert state()["schedules"] == kept, "a deleted schedule is not made again"
        deployed.deploy(by_hand=False, schedules="on")
        (new,) = [each for each in state()["schedules"] if each["slug"] == weekly["slug"]]
        assert new["active"] and new["schedule"] == weekly["schedule"]
        assert [each for each in state()["schedules"] if each["slug"] != weekly["slug"]] == kept


CHANGING = {
    "id", "created", "updated", "flow_id", "work_queue_id", "default_queue_id", "automation_id", "deployment_id",
    "last_polled", "created_by", "updated_by", "status", "concurrency_limit_id", "labels",
}  # fmt: skip


def lasting(found: Any) -> Any:
    """An object of the server without ids, times and the state of its worker; sets of events are sorted."""
    if isinstance(found, dict):
        kept = {name: lasting(value) for name, value in found.items() if name not in CHANGING}
        return {name: value for name, value in kept.items() if not str(value).startswith("deployment:")}
    if isinstance(found, list):
        values = [lasting(each) for each in found]
        return sorted(values) if all(isinstance(each, str) for each in values) else values
    return found


def everything(serving: Serving) -> dict[str, Any]:
    """The deployments, automations and work pools of a server, by name."""
    with PrefectHttpxSyncClient(base_url=serving.address, timeout=60) as client:
        kinds = ("deployments", "automations", "work_pools")
        found = {kind: client.post(f"/{kind}/filter", json={}).raise_for_status().json() for kind in kinds}
    return {kind: {each["name"]: lasting(each) for each in found[kind]} for kind in kinds}


@pytest.mark.deep
def test_a_run_that_the_server_has_forgotten_to_watch_is_watched_again(deployed: Serving, tmp_path: Path) -> None:
    job = small_values(tmp_path / "raw", tmp_path / "store")
    silent, without_heartbeats, taken = (
        deployed.run("train-model/train", job, after=timedelta(days=1)) for _ in range(3)
    )
    with temporary_settings({PREFECT_API_URL: deployed.address}), get_client(sync_client=True) as client:
        for run in (silent, without_heartbeats):
            client.set_flow_run_state(run, Running(), force=True)
    deployed.take(taken)
    heartbeat = {
        "event": "prefect.flow-run.heartbeat",
        "id": str(uuid4()),
        "occurred": datetime.now(UTC).isoformat(),
        "resource": {"prefect.resource.id": f"prefect.flow-run.{silent}"},
        "related": [{"prefect.resource.id": "prefect.tag.headrace", "prefect.resource.role": "tag"}],
    }
    with (
        PrefectHttpxSyncClient(base_url=deployed.address, timeout=60) as client,
        closing(sqlite3.connect(tmp_path / "home" / "prefect.db", timeout=60, isolation_level=None)) as database,
    ):
        client.post("/events", json=[heartbeat])
        awaited = "SELECT count(DISTINCT bucketing_key) FROM automation_bucket"
        wait_until(lambda: database.execute(awaited).fetchone() == (2,), 60)
        kept = "SELECT count(*) FROM events WHERE event = 'prefect.flow-run.heartbeat'"
        wait_until(lambda: database.execute(kept).fetchone() == (1,), 60)
        database.execute("DELETE FROM automation_bucket")  # as a server does that starts after an outage
        for automation in ("headrace: silent runs have crashed", "headrace: runs that do not start have crashed"):
            deployed.set_patience(automation, 10.0)
        watch(client)
    wait_until(lambda: [deployed.state_of(run) for run in (silent, taken)] == ["CRASHED"] * 2, 120)
    assert deployed.state_of(without_heartbeats) == "RUNNING"


@pytest.mark.deep
def test_it_creates_what_the_documented_commands_create(deployed: Serving, tmp_path: Path) -> None:
    (tmp_path / "by-hand").mkdir()
    other = Serving(tmp_path / "by-hand")
    try:
        other.deploy(by_hand=True)
        by_hand = everything(other)
    finally:
        other.kill_server()
    found = everything(deployed)
    assert len(found["deployments"]) > 10 and len(found["automations"]) == 3
    for name, deployment in found["deployments"].items():
        theirs = by_hand["deployments"][name]
        own = {"command": ENGINE, "working_dir": str(ROOT)}
        assert deployment.pop("job_variables") == {**theirs.pop("job_variables"), **own}
        assert deployment.pop("version") == __version__ and theirs.pop("version")
    assert found == by_hand


@pytest.mark.deep
def test_a_deployment_of_the_same_name_of_another_flow_is_left_alone(deployed: Serving) -> None:
    schedules = [{"slug": "weekly", "schedule": {"cron": "0 4 * * 0"}, "active": False}]
    with PrefectHttpxSyncClient(base_url=deployed.address, timeout=60) as client:
        flow = client.post("/flows/", json={"name": "of-others"}).raise_for_status().json()["id"]
        entrypoint = "flows.data_to_model.data_to_model"
        values = {"name": "pretrain", "flow_id": flow, "entrypoint": entrypoint, "schedules": schedules}
        client.post("/deployments/", json=values).raise_for_status()
        before = client.get("/deployments/name/of-others/pretrain").json()
        deployed.deploy(by_hand=False, schedules="on")
        assert client.get("/deployments/name/of-others/pretrain").json() == before
        ours = client.get("/deployments/name/data-to-model/pretrain").json()["schedules"]
        assert [each["active"] for each in ours] == [True]


@pytest.mark.deep
def test_a_killed_registration_loses_nothing(deployed: Serving) -> None:
    first, last = "/deployments/name/data-to-model/pretrain", "/deployments/name/gc/collect-garbage"
    with PrefectHttpxSyncClient(base_url=deployed.address, timeout=60) as client:

        def found(path: str) -> dict[str, Any]:
            deployment: dict[str, Any] = client.get(path).raise_for_status().json()
            return deployment

        mine = {"parameters": {"job": {**found(first)["parameters"]["job"], "name": "mine"}}, "paused": True}
        for path, values in ((first, mine), (last, {"parameters": {"job": {"store": "mine"}}})):
            old = {**values, "version": "earlier"}
            client.patch(f"/deployments/{found(path)['id']}", json=old).raise_for_status()
        before = [found(path)["parameters"] for path in (first, last)]
        process = subprocess.Popen(
            [sys.executable, "-c", REGISTER, deployed.address, ""], cwd=ROOT, env={**os.environ, **deployed.env}
        )
        wait_until(lambda: found(first)["version"] == __version__, 120)
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
        process.wait()
        assert [found(path)["parameters"] for path in (first, last)] == before and found(first)["paused"]
        deployed.deploy(by_hand=False)
        assert found(last)["version"] == __version__
        assert [found(path)["parameters"] for path in (first, last)] == before and found(first)["paused"]
