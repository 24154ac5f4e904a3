"""What a person changed on the server stays when everything is deployed again."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prefect.client.base import PrefectHttpxSyncClient

from deployments.registration import ENGINE
from tests.flows.serving import Serving

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
