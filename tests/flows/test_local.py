"""`make up` and `make down` can be repeated, leave no processes and lose nothing."""

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil
import pytest
from prefect.client.base import PrefectHttpxSyncClient
from prefect.client.schemas.objects import FlowRun
from prefect.deployments import run_deployment
from prefect.settings import PREFECT_API_URL, temporary_settings

from deployments.local import ADDRESS, DEFAULTS, LAST, _client, _exports, _kept_by, _write_samples, own_path
from deployments.registration import ENGINE, _block
from tests import ROOT
from tests.depth import once
from tests.flows.conftest import Done
from tests.flows.local_stack import Local
from tests.http_server import Answering, http_server
from tests.processes import alive, command_line, descendants, wait_until
from tests.support import small_values, steps_recorded, write_traps
from trainer.common.errors import EXIT_PREEMPTED
from trainer.config.files import parse_yaml

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
    assert psutil.Process(worker).environ()["PREFECT_WORKER_QUERY_SECONDS"] == "2"
    assert local.schedules() == [False, False], "off by default"
    local.say("up", SCHEDULES="on")
    assert local.schedules() == [True, True]
    local.say("up", SCHEDULES="")
    assert local.schedules() == [True, True], "they stay as they are"
    assert {kind: local.names(kind) for kind in before} == before
    deployed = parse_yaml((ROOT / "deployments" / "prefect.yaml").read_text())["deployments"]
    assert (
        len(before["deployments"]) == len(deployed)
        and before["work_pools"] == ["local"]
        and len(before["automations"]) == 3
    )
    assert local.worker() == worker

    store = tmp_path / "store"
    raw = done.job.data.corpora[0].paths[0].removesuffix("/code/*.py")
    job = small_values(Path(raw), store, training__max_steps=100_000, training__save_every=None)
    with temporary_settings({PREFECT_API_URL: local.address}):
        started = run_deployment("data-to-model/pretrain", parameters={"job": job}, timeout=0)
        assert isinstance(started, FlowRun)
    wait_until(lambda: steps_recorded(store) > 20, 240)
    family = [worker, *descendants(worker)]
    assert len(family) > 2
    assert "stopped the server" in local.say("down")
    wait_until(lambda: not any(map(alive, family)), 60)
    assert any(path.name.startswith("step-") for path in store.glob("runs/*/checkpoints/*")), "it saved before it ended"
    assert local.say("down") == f"nothing was running that was started with PREFECT_HOME={local.home}\n"


@pytest.mark.deep
def test_pages_of_other_sites_get_no_answers_and_other_users_no_database(local: Local) -> None:
    local.say("up")

    def allowed(origin: str) -> str | None:
        asked = {"Origin": origin, "Access-Control-Request-Method": "POST"}
        answer = httpx.options(f"{local.address}/deployments/filter", headers=asked, timeout=60)
        return answer.headers.get("access-control-allow-origin")

    own = local.address.removesuffix("/api")
    assert (allowed(own), allowed("https://elsewhere.example")) == (own, None)
    assert (local.home / "prefect.db").stat().st_mode & 0o777 == 0o600


def start_up(local: Local) -> subprocess.Popen[str]:
    """`headrace up`, in a process group of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "flows.command", "up"],
        cwd=ROOT, env=local.env, start_new_session=True, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # ignored in the background
    )  # fmt: skip


def interrupt(up: subprocess.Popen[str]) -> None:
    """Press Ctrl-C in its terminal, which it must answer."""
    os.killpg(up.pid, signal.SIGINT)
    _, said = up.communicate(timeout=60)
    assert (up.returncode, said) == (EXIT_PREEMPTED, "\ninterrupted; `headrace up` can be repeated\n")


@pytest.mark.long
def test_an_interrupted_up_says_so(local: Local) -> None:
    local.say("up")
    server = psutil.Process(int((local.home / "server.pid").read_text()))
    server.suspend()  # the next command waits for its answer
    try:
        up = start_up(local)
        wait_until(lambda: any(psutil.Process(pid).net_connections() for pid in descendants(up.pid)), 120)
        interrupt(up)
    finally:
        server.resume()


def test_an_up_that_is_interrupted_during_its_imports_says_so(local: Local) -> None:
    up = start_up(local)
    wait_until(lambda: any("deployments.local" in command_line(pid) for pid in descendants(up.pid)))
    interrupt(up)


def test_a_busy_server_is_asked_again() -> None:
    answers = [503, 503, 404]

    class Busy(Answering):
        def do_GET(self) -> None:
            self.answer(answers.pop(0), headers={"Retry-After": "0"})

    with http_server(Busy) as address, _client({**DEFAULTS, "PORT": address.rpartition(":")[2]}) as client:
        answer = client.get("/variables/name/none")
    assert answer.status_code == 404 and not answers, "what there is not is told, not raised"


def test_a_worker_heeds_interrupts_though_a_script_started_it_in_the_background(tmp_path: Path) -> None:
    told = tmp_path / "python"
    told.write_text("#!/bin/sh\nexec grep SigIgn /proc/self/status\n")
    told.chmod(0o755)
    start = (
        "import signal, sys; from pathlib import Path; signal.signal(signal.SIGINT, signal.SIG_IGN);"
        "from deployments import local; local.HOME, sys.executable = Path(sys.argv[1]), sys.argv[2];"
        "local._start('worker')"
    )
    subprocess.run([sys.executable, "-c", start, tmp_path, told], check=True, cwd=ROOT)
    wait_until(lambda: (tmp_path / "worker.log").read_text().endswith("\n"), 30)
    ignored = int((tmp_path / "worker.log").read_text().split()[1], 16)
    assert not ignored >> (signal.SIGINT - 1) & 1


def test_a_deployed_run_imports_no_modules_of_its_folder(tmp_path: Path) -> None:
    imported = write_traps(tmp_path)
    env = {**os.environ, "PATH": own_path()}
    ended = subprocess.run(ENGINE.split(), cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert "Invalid flow run id" in ended.stderr, "Prefect's engine was started, without a run"
    assert not imported.exists(), imported.read_text()


@pytest.mark.parametrize("own", ["code/mine.py", "planted/evaluation.txt"])
def test_no_sample_is_written_into_a_folder_that_is_there(
    own: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    kept = tmp_path / "data" / "raw" / own
    kept.parent.mkdir(parents=True)
    kept.write_text("mine\n")
    _write_samples()
    assert kept.read_text() == "mine\n" and [path for path in (tmp_path / "data").rglob("*") if path.is_file()] == [
        kept
    ]
    assert ("is left unchanged" in capsys.readouterr().out) == (own == "code/mine.py")


def test_samples_are_written_where_there_is_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    _write_samples()
    assert (tmp_path / "data" / "raw" / "planted" / "evaluation.txt").is_file()


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
    ("does", "said"), once(("exit 1", "ended"), ("sleep 600", "does not answer after 3 s (`headrace down` stops it)"))
)
def test_a_server_that_ends_or_does_not_answer_is_told(does: str, said: str, tmp_path: Path) -> None:
    local, told = Local(tmp_path), tmp_path / "python"
    told.write_text(f"#!/bin/sh\necho $$ > '{tmp_path}/pid'\n{does}\n")
    told.chmod(0o755)
    start = (
        "import sys; from deployments import local; local.SERVER_SECONDS, sys.executable = 3, sys.argv[1];"
        "sys.exit(local.up())"
    )
    ended = local.python("-c", start, str(told))
    assert ended.returncode == 1 and f"{said}; see {local.home / 'server.log'}" in ended.stderr
    local.python("-c", "from deployments import local; local.down()")
    assert not alive(int((tmp_path / "pid").read_text())) and not (local.home / "server.pid").exists()


def test_a_block_that_does_not_exist_is_bad_input(server: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    base = server["PREFECT_API_URL"]
    with PrefectHttpxSyncClient(base_url=base, raise_on_all_errors=False) as client, pytest.raises(SystemExit) as end:
        _block(client, "NOTIFY", "webhook", "nobody")
    assert end.value.code == 2 and "NOTIFY: the server has no webhook block 'nobody'" in capsys.readouterr().err


def test_schedules_that_are_left_empty_stay_as_they_are(tmp_path: Path) -> None:
    said = "from deployments import local; print(local.SCHEDULED[local.SCHEDULES])"
    assert Local(tmp_path, SCHEDULES="").python("-c", said).stdout == "None\n"


OWN, PASSWORD = {"LISTEN": "localhost", "DB": "sqlite+aiosqlite:///own.db"}, "PREFECT_SERVER_API_AUTH_STRING"


def test_a_shell_is_told_that_it_needs_the_password() -> None:
    open_to_all, guarded = _exports(DEFAULTS), _exports({**DEFAULTS, PASSWORD: "me:secret"})
    assert open_to_all == "export PREFECT_API_URL=http://127.0.0.1:4200/api"
    assert guarded.startswith(f"{open_to_all}\nexport PREFECT_API_AUTH_STRING=") and "secret" not in guarded


@contextmanager
def posing(what: str, local: Local, **env: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that simulates a server or a worker which `up` started."""
    local.home.mkdir()
    command = [sys.executable, "-c", "import sys; sys.stdin.read()", what]
    with subprocess.Popen(command, env={**local.env, **env}, stdin=subprocess.PIPE) as process:
        (local.home / f"{what}.pid").write_text(str(process.pid))
        yield process


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


def test_down_pauses_no_pool_of_another_folders_server(tmp_path: Path) -> None:
    asked: list[str] = []

    class Others(Answering):
        def do_GET(self) -> None:
            asked.append(f"{self.command} {self.path}")
            self.answer(200)

        do_PATCH = do_GET

    local = Local(tmp_path)
    with http_server(Others, int(local.env["PORT"])), posing("worker", local) as worker:
        threading.Thread(target=worker.wait, daemon=True).start()
        assert local.say("down") == "stopped the worker\n"
    assert not [each for each in asked if each.startswith("PATCH")]


def test_a_worker_that_would_find_another_python_is_refused(tmp_path: Path) -> None:
    local = Local(tmp_path)
    with posing("worker", local, PATH=os.defpath):
        refused = local.python("-m", "deployments.local", "up")
    assert refused.returncode == 2 and "stop it first with `headrace down`" in refused.stderr
    assert [path.name for path in local.home.iterdir()] == ["worker.pid"]


def test_a_running_worker_that_keeps_other_variables_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = [sys.executable, "-c", "import sys; sys.stdin.read()", "worker"]
    monkeypatch.setenv("AWS_PROFILE", "former")
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path))
    with subprocess.Popen(command, stdin=subprocess.PIPE) as worker:
        assert not _kept_by(psutil.Process(worker.pid))
        monkeypatch.setenv("AWS_PROFILE", "mine")
        monkeypatch.delenv("HEADRACE_CACHE")
        monkeypatch.setenv("HF_TOKEN", "mine")
        assert _kept_by(psutil.Process(worker.pid)) == ["AWS_PROFILE", "HEADRACE_CACHE", "HF_TOKEN"]


def test_what_is_not_given_is_as_the_server_that_runs_has_it(tmp_path: Path) -> None:
    said = (
        "from deployments.local import _api, _auth, _differences, _settings, _started; started = _started();"
        "settings = _settings(started); print(_differences(started, settings), _api(settings), _auth(settings))"
    )
    local = Local(tmp_path, **OWN, **{PASSWORD: "me:secret"})
    with posing("server", local):
        told = local.python("-c", said, LISTEN="", PORT="", DB="", **{PASSWORD: ""})
    assert told.stdout == f"[] http://localhost:{local.env['PORT']}/api ('me', 'secret')\n"
