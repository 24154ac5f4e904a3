"""`headrace up` and `down` refuse what cannot work before they start, stop or change anything."""

import os
import socket
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from deployments.address import PASSWORD
from deployments.local import ADDRESS, LAST, own_path
from tests import ROOT
from tests.depth import once
from tests.flows.local_stack import OWN, Local, posing

pytestmark = [pytest.mark.slow, pytest.mark.timeout(500)]


def test_it_is_not_open_to_other_machines_without_a_password(tmp_path: Path) -> None:
    open_to_all = Local(tmp_path, LISTEN="0.0.0.0")
    open_to_all.env.pop("PREFECT_SERVER_API_AUTH_STRING", None)
    refused = open_to_all.python("-m", "deployments.local", "up")
    assert refused.returncode == 2 and "PREFECT_SERVER_API_AUTH_STRING=user:password" in refused.stderr
    assert not open_to_all.home.exists()


@pytest.mark.parametrize("asked", ["On", "true"])
def test_schedules_are_on_or_off(asked: str, tmp_path: Path) -> None:
    local = Local(tmp_path, SCHEDULES=asked)
    refused = local.python("-m", "deployments.local", "up")
    assert refused.returncode == 2 and f"SCHEDULES={asked}: expected on" in refused.stderr
    assert not local.home.exists()


@pytest.mark.parametrize("port", once("70000", "abc", "0", "-1", "4200.5", "²"))
def test_a_port_is_a_whole_number_that_servers_can_have(port: str, tmp_path: Path) -> None:
    local = Local(tmp_path, PORT=port)
    refused = local.python("-m", "deployments.local", "up")
    assert refused.returncode == 2 and f"PORT={port}: expected a whole number from 1 to 65535" in refused.stderr
    assert not local.home.exists()
    assert local.say("down") == f"nothing was running that was started with PREFECT_HOME={local.home}\n"


@pytest.mark.parametrize(
    ("setting", "value", "told"),
    once(
        ("DB", "postgress", "DB=postgress: expected sqlite, postgres, or the address of a database"),
        ("DB", "postgresql://me:secret@host/name", "DB=postgresql: expected sqlite, postgres, or the address"),
        ("PREFECT_SERVER_API_AUTH_STRING", "secret", "STRING has no colon: expected user:password"),
    ),
)
def test_a_database_or_password_that_no_server_can_have_is_refused(
    setting: str, value: str, told: str, tmp_path: Path
) -> None:
    local = Local(tmp_path, **{setting: value})
    refused = local.python("-m", "deployments.local", "up")
    assert refused.returncode == 2 and told in refused.stderr and "secret" not in refused.stderr
    assert not local.home.exists()


@pytest.mark.parametrize(
    ("home", "told"), [("file/home", "PREFECT_HOME="), ("file", "PREFECT_HOME="), ("home", "for the sample corpora")]
)
def test_a_folder_that_cannot_be_written_is_named(home: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "data").touch()
    env = {**Local(tmp_path).env, "PREFECT_HOME": str(tmp_path / home), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "deployments.local", "up"]
    refused = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert refused.returncode == 2 and told in refused.stderr and "cannot be written" in refused.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "file"]


@pytest.mark.parametrize(
    ("had", "asked", "told"),
    [
        (OWN, {"LISTEN": "127.0.0.1"}, "LISTEN=localhost, not 127.0.0.1"),
        ({}, {"LISTEN": "localhost", PASSWORD: "me:secret"}, f"LISTEN=127.0.0.1, not localhost and no {PASSWORD}"),
        ({}, {"PORT": "1"}, "PORT={PORT}, not 1"),
        (OWN, {"DB": "sqlite"}, "another DB"),
        ({PASSWORD: "me:secret"}, {PASSWORD: "me:others", "DB": "postgres"}, f"another DB and another {PASSWORD}"),
    ],
)
def test_a_server_that_runs_is_not_changed(
    had: dict[str, str], asked: dict[str, str], told: str, tmp_path: Path
) -> None:
    local = Local(tmp_path, **had)
    with posing("server", local):
        refused = local.python("-m", "deployments.local", "up", **asked)
    assert refused.returncode == 2
    assert f"was started with {told.format(**local.env)}: stop it first with `headrace down`" in refused.stderr
    assert "secret" not in refused.stderr and "others" not in refused.stderr
    assert [path.name for path in local.home.iterdir()] == ["server.pid"]


def test_a_port_that_another_folders_server_has_is_refused(tmp_path: Path) -> None:
    local = Local(tmp_path)
    with socket.create_server(("127.0.0.1", int(local.env["PORT"]))):
        refused = local.python("-m", "deployments.local", "up")
    assert refused.returncode == 2
    assert f"port {local.env['PORT']} is taken by a server or program that was not started with" in refused.stderr
    assert "set PORT to a free port, or PREFECT_HOME" in refused.stderr
    assert not local.home.exists()


@pytest.mark.parametrize(("last", "told"), [("postgres", "set DB=postgres again"), (ADDRESS, "set DB to its address")])
def test_another_database_than_that_of_the_last_server_is_asked_for_by_name(
    last: str, told: str, tmp_path: Path
) -> None:
    local = Local(tmp_path)
    local.home.mkdir()
    (local.home / LAST.name).write_text(last)
    refused = local.python("-m", "deployments.local", "up", DB="")
    assert refused.returncode == 2 and told in refused.stderr and not (local.home / "server.pid").exists()


def test_a_worker_that_would_find_another_python_is_refused(tmp_path: Path) -> None:
    local = Local(tmp_path)
    with posing("worker", local, PATH=os.defpath):
        refused = local.python("-m", "deployments.local", "up")
    assert refused.returncode == 2 and "stop it first with `headrace down`" in refused.stderr
    assert [path.name for path in local.home.iterdir()] == ["worker.pid"]


@pytest.mark.parametrize(
    ("had", "told"),
    once(
        ({"PREFECT_API_URL": "http://127.0.0.1:1/api"}, "the running worker asks the server at http://127.0.0.1:1/api"),
        ({"PREFECT_API_AUTH_STRING": "me:former"}, f"the running worker was started with another {PASSWORD}: stop it"),
    ),
)
def test_a_worker_of_a_server_that_was_killed_is_refused_if_the_next_has_another_address_or_password(
    had: dict[str, str], told: str, tmp_path: Path
) -> None:
    local = Local(tmp_path, **{PASSWORD: "me:secret"})
    with posing("worker", local, **{"PATH": own_path(), "PREFECT_API_URL": local.address, **had}):
        refused = local.python("-m", "deployments.local", "up")
    assert refused.returncode == 2 and told in refused.stderr and "`headrace down`" in refused.stderr
    assert "former" not in refused.stderr and [path.name for path in local.home.iterdir()] == ["worker.pid"]


@pytest.mark.skipif(os.geteuid() != 0, reason="starts processes as another user")
@pytest.mark.parametrize("command", once("up", "down"))
def test_what_another_user_started_is_left_alone(command: str) -> None:
    script = (
        "import os, sys; from deployments import local; os.setgroups([]); os.setgid(65534); os.setuid(65534);"
        "sys.exit(local.COMMANDS[sys.argv[1]]())"
    )
    with TemporaryDirectory() as name, posing("server", local := Local(Path(name))) as server:
        for folder in (Path(name), local.home):
            folder.chmod(0o777)
        refused = local.python("-c", script, command)
        assert server.poll() is None
        assert refused.returncode == 2 and "was started by the user root" in refused.stderr, refused.stderr
        assert [path.name for path in local.home.iterdir()] == ["server.pid"]
