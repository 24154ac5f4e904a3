"""Register headrace with a Prefect server: work pool, deployments, limits, automations and variables.

What exists is updated, except what people change on the server: a deployment's parameters, schedules, limit, pause and
environment variables, whether an automation is enabled, and the work pool's and limits' settings. `prefect deploy`
resets most of these, so they are read before it and put back after it.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx

from trainer.common.errors import EXIT_BAD_INPUT
from trainer.config.files import parse_yaml

HERE = Path(__file__).parent

LIMITS = {"headrace-devices": 1, "headrace-tokenization": 1}
"""How many stages may compute on a machine's devices, or tokenize, at the same time (tasks/turns.py)."""

DEPLOYMENTS = HERE / "prefect.yaml"

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
    before = {each["id"]: each for each in _named(client)}
    disabled = [each["name"] for each in _automations(client) if not each["enabled"]]
    if _missing(client, "/work_pools/local"):
        _prefect("work-pool", "create", "--type", "process", "local")
    client.patch("/work_pools/local", json={"is_paused": False}).raise_for_status()  # `make down` pauses it
    try:
        _prefect("deploy", "--all", "--prefect-file", str(DEPLOYMENTS))
    except BaseException:  # failed or interrupted: it has reset the deployments that it reached
        try:
            _put_all_back(client, before, disabled, schedules)
        except httpx.HTTPError as error:
            print(f"what was changed on the server could not be put back: {error}", file=sys.stderr)
        raise
    _put_all_back(client, before, disabled, schedules)
    for each, schedule in _schedules(client) if schedules is not None else []:
        path = f"/deployments/{each['id']}/schedules/{schedule['id']}"
        client.patch(path, json={"active": schedules}).raise_for_status()
    for name, slots in LIMITS.items():
        if _missing(client, f"/v2/concurrency_limits/{name}"):
            client.post("/v2/concurrency_limits/", json={"name": name, "limit": slots}).raise_for_status()
    if _missing(client, f"/variables/name/{CREDENTIALS}"):
        client.post("/variables/", json={"name": CREDENTIALS, "value": credentials or ""}).raise_for_status()
    elif credentials is not None:
        client.patch(f"/variables/name/{CREDENTIALS}", json={"value": credentials}).raise_for_status()
    automations = _read("automations.yaml")
    if webhook is not None:
        automations += [_calling(webhook, each) for each in _read("notifications.yaml")]
    made = {each["name"]: each["id"] for each in _automations(client)}
    for automation in automations:
        _automate(client, {**automation, "enabled": automation["name"] not in disabled}, made.get(automation["name"]))


def _put_all_back(
    client: httpx.Client, before: Mapping[str, dict[str, Any]], disabled: Sequence[str], schedules: bool | None
) -> None:
    """Put back what people had changed in all deployments, and which automations they had disabled."""
    for each in _deployed(client):
        _put_back(client, each, before.get(each["id"], each), all_schedules=schedules is True)
    for each in _automations(client):  # `prefect deploy` enables the watchdog's own
        if each["name"] in disabled:
            client.patch(f"/automations/{each['id']}", json={"enabled": False}).raise_for_status()


def _put_back(client: httpx.Client, deployed: dict[str, Any], before: dict[str, Any], all_schedules: bool) -> None:
    """Give a deployment this version's command and the current folder, and what it had before it was deployed again.

    With `all_schedules`, also the schedules of DEPLOYMENTS that it did not have.
    """
    path = f"/deployments/{deployed['id']}"
    ours, theirs = deployed["job_variables"], before["job_variables"]
    variables = {**theirs, **ours, "env": {**ours.get("env", {}), **theirs.get("env", {})}}
    limit = before["global_concurrency_limit"]
    values = {
        "job_variables": {**variables, "command": ENGINE, "working_dir": os.getcwd()},
        "paused": before["paused"],
        "concurrency_limit": limit and limit["limit"],
        "concurrency_options": before["concurrency_options"],
    }
    client.patch(path, json=values).raise_for_status()
    if deployed["parameters"] != before["parameters"]:
        answer = client.patch(path, json={"parameters": before["parameters"]})
        if answer.status_code == httpx.codes.CONFLICT:  # a setting of an earlier version
            print(
                f"the parameters of the deployment {deployed['name']} do not fit this version, whose defaults replace "
                f"them: {answer.json()['detail']}. They were: {json.dumps(before['parameters'])}"
            )
        else:
            answer.raise_for_status()
    # Schedules made in the UI have no slug, and are gone after `prefect deploy`. Others are changed, not made anew: the
    # server deletes the late runs of a schedule that is deleted.
    now = {schedule["slug"]: schedule for schedule in deployed["schedules"]}
    kept = {schedule["slug"] for schedule in before["schedules"]}
    for slug in now.keys() - kept if not all_schedules else ():
        client.delete(f"{path}/schedules/{now[slug]['id']}").raise_for_status()
    for schedule in map(_content, before["schedules"]):
        present = now.get(schedule["slug"])
        if present is None:
            client.post(f"{path}/schedules", json=[schedule]).raise_for_status()
        elif _content(present) != schedule:
            client.patch(f"{path}/schedules/{present['id']}", json=schedule).raise_for_status()


def _content(schedule: dict[str, Any]) -> dict[str, Any]:
    """A schedule without what the server adds."""
    return {name: schedule[name] for name in ("schedule", "active", "max_scheduled_runs", "parameters", "slug")}


def _prefect(*arguments: str) -> None:
    """Run a Prefect command; if it fails, print its output and exit."""
    said = subprocess.run(
        [sys.executable, "-P", "-m", "prefect", "--no-prompt", *arguments], capture_output=True, text=True, check=False
    )
    if said.returncode:
        sys.exit(f"prefect {' '.join(arguments)} failed:\n{said.stdout}{said.stderr}")


def _read(name: str) -> list[dict[str, Any]]:
    automations: list[dict[str, Any]] = parse_yaml((HERE / name).read_text())["automations"]
    return automations


def _missing(client: httpx.Client, path: str) -> bool:
    """Whether nothing exists at this path yet."""
    answer = client.get(path)
    return answer.status_code == httpx.codes.NOT_FOUND or not answer.raise_for_status()


def _block(client: httpx.Client, setting: str, kind: str, name: str) -> str:
    """The id of the block that a setting names; if there is none, print that and exit."""
    answer = client.get(f"/block_types/slug/{quote(kind, safe='')}/block_documents/name/{quote(name, safe='')}")
    if answer.status_code == httpx.codes.NOT_FOUND:
        print(
            f"{setting}: the server has no {kind} block {name!r}; create one in the UI (Blocks) and try again",
            file=sys.stderr,
        )
        sys.exit(EXIT_BAD_INPUT)
    return str(answer.raise_for_status().json()["id"])


def _calling(block: str, automation: dict[str, Any]) -> dict[str, Any]:
    """An automation with the block set in its actions."""
    return {**automation, "actions": [{**action, "block_document_id": block} for action in automation["actions"]]}


def _automate(client: httpx.Client, automation: dict[str, Any], made: str | None) -> None:
    """Create an automation, or update the one with this id."""
    path = f"/automations/{made}" if made else "/automations/"
    client.request("PUT" if made else "POST", path, json=automation).raise_for_status()


def _automations(client: httpx.Client) -> list[dict[str, Any]]:
    """The server's automations."""
    found: list[dict[str, Any]] = []
    while page := client.post("/automations/filter", json={"offset": len(found)}).raise_for_status().json():
        found += page
    return found


def _schedules(client: httpx.Client) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """The server's schedules that come from DEPLOYMENTS, each with its deployment."""
    ours = {name: {schedule["slug"] for schedule in each.get("schedules", [])} for name, each in _ours().items()}
    return [
        (each, schedule)
        for each in _deployed(client)
        for schedule in each["schedules"]
        if schedule["slug"] in ours[each["entrypoint"], each["name"]]
    ]


def _deployed(client: httpx.Client) -> list[dict[str, Any]]:
    """The server's deployments that come from DEPLOYMENTS."""
    return [each for each in _named(client) if (each["entrypoint"], each["name"]) in _ours()]


def _named(client: httpx.Client) -> list[dict[str, Any]]:
    """The server's deployments with the names of those in DEPLOYMENTS, also those of another version's flows."""
    names = {"name": {"any_": [name for _, name in _ours()]}}
    found: list[dict[str, Any]] = []
    path = "/deployments/filter"
    while page := client.post(path, json={"deployments": names, "offset": len(found)}).raise_for_status().json():
        found += page
    return found


@cache
def _ours() -> dict[tuple[str, str], dict[str, Any]]:
    """The deployments in DEPLOYMENTS, by entrypoint and name."""
    return {(each["entrypoint"], each["name"]): each for each in parse_yaml(DEPLOYMENTS.read_text())["deployments"]}
