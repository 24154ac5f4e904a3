"""Register headrace with a Prefect server: work pool, deployments, limits, automations and variables.

What exists gets this version's code, schema and description; what people change on the server is left as it is: a
deployment's parameters, schedules, limit, pause, work pool and environment variables, whether an automation is enabled,
and the work pool's and limits' settings. (`prefect deploy` resets most of these.) Each deployment is created or updated
by one request, so that an interrupted registration loses nothing.
"""

import json
import os
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import UUID, uuid4

import httpx

from trainer import __version__
from trainer.common.errors import EXIT_BAD_INPUT
from trainer.config.files import parse_yaml

HERE = Path(__file__).parent

LIMITS = {"headrace-devices": 1, "headrace-tokenization": 1}
"""How many stages may compute on a machine's devices, or tokenize, at the same time (tasks/turns.py)."""

ENGINE = "python3 -P -m flows.engine"
"""The command of a flow run, with the first `python3` on the worker's PATH; -P: it imports the installed package,
whatever its folder holds.

Without a command, Prefect starts another process first, which prepares the folder and loads Prefect once more.
"""

CREDENTIALS = "headrace_credentials"
"""The server's variable with the name of the credentials' block (tasks/credentials.py); empty: none."""


def register(client: httpx.Client, notify: str | None, credentials: str | None, schedules: bool | None) -> None:
    """Create or update everything.

    notify: the name of a Webhook block to call when a run fails or a gate is not met. credentials: the block with the
    store's credentials. schedules: whether the nightly and weekly runs are started, with those schedules that were
    deleted or are new in this version; None keeps the present state.
    """
    webhook = _block(client, "NOTIFY", "webhook", notify) if notify else None
    if credentials:
        kind, _, name = credentials.partition("/")
        _block(client, "CREDENTIALS", kind, name)
    if _find(client, "/work_pools/local") is None:
        _create_pool(client)
    client.patch("/work_pools/local", json={"is_paused": False}).raise_for_status()  # `make down` pauses it
    automations = _read("automations.yaml")["automations"]
    for ours in _read("prefect.yaml")["deployments"]:
        deployment = _deploy(client, ours)
        if schedules is not None:
            _schedule(client, deployment, ours, schedules)
        automations += [_starting(deployment, trigger) for trigger in ours.get("triggers", ())]
    for name, slots in LIMITS.items():
        if _find(client, f"/v2/concurrency_limits/{name}") is None:
            client.post("/v2/concurrency_limits/", json={"name": name, "limit": slots}).raise_for_status()
    if _find(client, f"/variables/name/{CREDENTIALS}") is None:
        client.post("/variables/", json={"name": CREDENTIALS, "value": credentials or ""}).raise_for_status()
    elif credentials is not None:
        client.patch(f"/variables/name/{CREDENTIALS}", json={"value": credentials}).raise_for_status()
    if webhook is not None:
        automations += [_calling(webhook, each) for each in _read("notifications.yaml")["automations"]]
    present = {each["name"]: each for each in _all(client, "/automations/filter", {})}
    for automation in automations:
        _automate(client, automation, present.get(automation["name"]))
    watch(client)
    look_at_crashed(client)


def look_at_crashed(client: httpx.Client) -> None:
    """Schedule a run of the watchdog if any run has crashed; its trigger misses a crash that is reported just before
    the server stops.
    """
    crashed = {"state": {"type": {"any_": ["CRASHED"]}}, "deployment_id": {"is_null_": False}}
    if client.post("/flow_runs/filter", json={"flow_runs": crashed, "limit": 1}).raise_for_status().json():
        deployed = client.get("/deployments/name/watchdog/watchdog").raise_for_status().json()
        client.post(f"/deployments/{deployed['id']}/create_flow_run", json={}).raise_for_status()


def watch(client: httpx.Client) -> None:
    """Make the automations about silence begin to wait for a sign of each run that starts, runs or is being cancelled.

    They wait from a run's last event. A server that was down when they should have acted drops that (Prefect's
    `sweep_closed_buckets`): a run whose process ended while the server was down, as in a power cut, would run forever.
    """
    # A process that is alive sends its own heartbeats in time; a run that never sent any is not expected to.
    after = {"PENDING": "Pending", "RUNNING": "heartbeat", "CANCELLING": "heartbeat"}
    wanted = {"tags": {"any_": ["headrace", "headrace-command"]}, "state": {"type": {"any_": list(after)}}}
    runs = _all(client, "/flow_runs/filter", {"flow_runs": wanted, "sort": "ID_DESC"})
    events = [
        {
            "id": str(uuid4()),
            "occurred": datetime.now(UTC).isoformat(),
            "event": f"prefect.flow-run.{after[run['state_type']]}",
            "resource": {"prefect.resource.id": f"prefect.flow-run.{run['id']}", "prefect.resource.name": run["name"]},
            "related": [
                {"prefect.resource.id": f"prefect.tag.{tag}", "prefect.resource.role": "tag"} for tag in run["tags"]
            ],
        }
        for run in runs
        if run["state_type"] == "PENDING" or _has_sent_heartbeats(client, run)
    ]
    client.post("/events", json=events).raise_for_status()


def _has_sent_heartbeats(client: httpx.Client, run: Mapping[str, Any]) -> bool:
    of = {"event": {"name": ["prefect.flow-run.heartbeat"]}, "resource": {"id": [f"prefect.flow-run.{run['id']}"]}}
    found = client.post("/events/filter", json={"filter": of, "limit": 1}).raise_for_status().json()
    return bool(found["events"])


def _create_pool(client: httpx.Client) -> None:
    from prefect.workers.process import ProcessWorker

    template = ProcessWorker.get_default_base_job_template()
    pool = {"name": "local", "type": ProcessWorker.type, "base_job_template": template}
    client.post("/work_pools/", json=pool).raise_for_status()


def _deploy(client: httpx.Client, ours: Mapping[str, Any]) -> dict[str, Any]:
    """Create or update a deployment of prefect.yaml; return it as the server has it."""
    path = f"/deployments/name/{ours['flow_name']}/{ours['name']}"
    theirs = _find(client, path)
    if theirs is None:
        flow = client.post("/flows/", json={"name": ours["flow_name"]}).raise_for_status().json()
        new = {
            **_described(ours),
            "flow_id": flow["id"],
            "name": ours["name"],
            "work_pool_name": ours["work_pool"]["name"],
            "parameters": ours.get("parameters", {}),
            "schedules": [_as_sent(schedule) for schedule in ours.get("schedules", ())],
            "concurrency_limit": ours.get("concurrency_limit"),
        }
        created: dict[str, Any] = client.post("/deployments/", json=new).raise_for_status().json()
        return created
    _update(client, theirs, ours)
    return theirs


def _update(client: httpx.Client, theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> None:
    """Give a deployment this version's code and the current folder. Its own variables stay, and its parameters if they
    are still valid.
    """
    path, described, before = f"/deployments/{theirs['id']}", _described(ours), theirs["job_variables"]
    variables = described["job_variables"]
    variables = {**before, **variables, "env": {**variables["env"], **(before.get("env") or {})}}
    values = {**described, "job_variables": variables}
    answer = client.patch(path, json=values)
    if answer.status_code == httpx.codes.CONFLICT:  # a setting of an earlier version
        print(
            f"the parameters of the deployment {ours['name']} do not fit this version, whose defaults replace them: "
            f"{answer.json()['detail']}. They were: {json.dumps(theirs['parameters'])}",
            flush=True,
        )
        answer = client.patch(path, json={**values, "parameters": ours.get("parameters", {})})
    answer.raise_for_status()


def _described(ours: Mapping[str, Any]) -> dict[str, Any]:
    """What the server keeps of a deployment of this version, in the current folder, besides what people change."""
    from prefect.flows import load_flow_from_entrypoint  # takes a second
    from prefect.utilities.callables import parameter_schema

    schema = parameter_schema(load_flow_from_entrypoint(ours["entrypoint"]))
    folder = os.getcwd()
    return {
        **{name: ours[name] for name in ("description", "entrypoint", "tags")},
        "version": __version__,
        "parameter_openapi_schema": schema.model_dump(exclude_unset=True),
        "pull_steps": [{"prefect.deployments.steps.set_working_directory": {"directory": folder}}],
        "job_variables": {**ours["work_pool"]["job_variables"], "command": ENGINE, "working_dir": folder},
    }


def _schedule(client: httpx.Client, deployment: Mapping[str, Any], ours: Mapping[str, Any], active: bool) -> None:
    """Start or stop a deployment's own schedules; those to be started are created if they do not exist."""
    path = f"/deployments/{deployment['id']}/schedules"
    present = {each["slug"]: each["id"] for each in deployment["schedules"]}
    for schedule in ours.get("schedules", ()):
        if (found := present.get(schedule["slug"])) is not None:
            client.patch(f"{path}/{found}", json={"active": active}).raise_for_status()
        elif active:
            client.post(path, json=[{**_as_sent(schedule), "active": True}]).raise_for_status()


def _as_sent(schedule: Mapping[str, Any]) -> dict[str, Any]:
    """A schedule of prefect.yaml as the server's API takes it."""
    when = {name: schedule[name] for name in ("cron", "timezone")}
    return {"slug": schedule["slug"], "active": schedule["active"], "schedule": when}


def _read(name: str) -> dict[str, list[dict[str, Any]]]:
    described: dict[str, list[dict[str, Any]]] = parse_yaml((HERE / name).read_text())
    return described


def _find(client: httpx.Client, path: str) -> dict[str, Any] | None:
    """What the server has at this path; None if nothing."""
    answer = client.get(path)
    if answer.status_code == httpx.codes.NOT_FOUND:
        return None
    found: dict[str, Any] = answer.raise_for_status().json()
    return found


def _block(client: httpx.Client, setting: str, kind: str, name: str) -> str:
    """The id of the block that a setting names; if there is none, print that and exit."""
    found = _find(client, f"/block_types/slug/{quote(kind, safe='')}/block_documents/name/{quote(name, safe='')}")
    if found is None:
        print(
            f"{setting}: the server has no {kind} block {name!r}; create one in the UI (Blocks) and try again",
            file=sys.stderr,
        )
        sys.exit(EXIT_BAD_INPUT)
    return str(found["id"])


def _calling(block: str, automation: dict[str, Any]) -> dict[str, Any]:
    """An automation with the block set in its actions."""
    return {**automation, "actions": [{**action, "block_document_id": block} for action in automation["actions"]]}


def _starting(deployment: Mapping[str, Any], trigger: dict[str, Any]) -> dict[str, Any]:
    """The automation that starts a deployment by one of its triggers, as `prefect deploy` creates it."""
    from prefect.events import DeploymentEventTrigger

    described = DeploymentEventTrigger.model_validate(trigger)
    described.set_deployment_id(UUID(deployment["id"]))
    return described.as_automation().model_dump(mode="json", exclude_unset=True)


def _automate(client: httpx.Client, automation: dict[str, Any], present: Mapping[str, Any] | None) -> None:
    """Create an automation, or update the present one, which stays disabled if it is."""
    if present is None:
        client.post("/automations/", json=automation).raise_for_status()
    else:
        values = {name: value for name, value in automation.items() if name != "owner_resource"}
        path = f"/automations/{present['id']}"
        client.put(path, json={**values, "enabled": present["enabled"]}).raise_for_status()


def _all(client: httpx.Client, path: str, wanted: Mapping[str, Any]) -> list[dict[str, Any]]:
    """All that the server has of what is wanted."""
    found: list[dict[str, Any]] = []
    while page := client.post(path, json={**wanted, "offset": len(found)}).raise_for_status().json():
        found += page
    return found
