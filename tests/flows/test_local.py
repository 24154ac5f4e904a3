"""`make up` and `make down` can be repeated, leave no processes and lose nothing."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest
from prefect.client.base import PrefectHttpxSyncClient
from prefect.client.schemas.objects import FlowRun
from prefect.deployments import run_deployment
from prefect.settings import PREFECT_API_URL, temporary_settings

from deployments.address import DEFAULTS, PASSWORD, client, exports
from deployments.local import _kept_by, _write_samples, own_path
from deployments.registration import ENGINE, _block
from tests import ROOT
from tests.depth import once
from tests.flows.conftest import Done
from tests.flows.local_stack import OWN, Local, posing
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
    assert not any(map(alive, family)), "also the training has saved"
    saved = steps_recorded(store)
    local.say("up")
    wait_until(lambda: steps_recorded(store) > saved, 240)
    assert any(path.name.startswith("step-") for path in store.glob("runs/*/checkpoints/*")), "it saved before it ended"
    assert "stopped the server" in local.say("down")
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

    with http_server(Busy) as address, client({**DEFAULTS, "PORT": address.rpartition(":")[2]}) as asking:
        answer = asking.get("/variables/name/none")
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


@pytest.mark.parametrize(("given", "home"), [("", ".prefect"), ("~/prefect", "{HOME}/prefect")])
def test_an_empty_home_is_the_usual_one_and_a_tilde_is_replaced(given: str, home: str, tmp_path: Path) -> None:
    said = "from deployments import local; print(local.HOME)"
    told = Local(tmp_path).python("-c", said, PREFECT_HOME=given, HOME=str(tmp_path)).stdout
    assert told == f"{ROOT / home.format(HOME=tmp_path)}\n"


def write_python(folder: Path, does: str) -> Path:
    """A program that does this in place of the interpreter by which `up` starts the server and the worker."""
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{does}\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("does", "said"), once(("exit 1", "ended"), ("sleep 600", "does not answer after 3 s (`headrace down` stops it)"))
)
def test_a_server_that_ends_or_does_not_answer_is_told(does: str, said: str, tmp_path: Path) -> None:
    local, told = Local(tmp_path), write_python(tmp_path, f"echo $$ > '{tmp_path}/pid'\n{does}")
    start = (
        "import sys; from deployments import local; local.SERVER_SECONDS, sys.executable = 3, sys.argv[1];"
        "sys.exit(local.up())"
    )
    ended = local.python("-c", start, str(told))
    assert ended.returncode == 1 and f"{said}; see {local.home / 'server.log'}" in ended.stderr
    local.python("-c", "from deployments import local; local.down()")
    assert not alive(int((tmp_path / "pid").read_text())) and not (local.home / "server.pid").exists()


def test_a_process_whose_id_cannot_be_written_is_ended_and_the_reason_told(tmp_path: Path) -> None:
    local, told = Local(tmp_path), write_python(tmp_path, "exec sleep 600")
    (local.home / "server.pid").mkdir(parents=True)  # fails to be written, like a file on a full disk
    start = (
        "import runpy, sys; sys.argv, sys.executable = ['local', 'up'], sys.argv[1];"
        "runpy.run_module('deployments.local', run_name='__main__')"
    )
    ended = local.python("-c", start, str(told))
    assert ended.returncode == 1 and "`headrace up` failed: [Errno " in ended.stderr
    assert f"{local.home / 'server.pid'}'; it can be repeated" in ended.stderr and "Traceback" not in ended.stderr
    assert not [
        each
        for each in psutil.process_iter(["environ"])
        if (each.info["environ"] or {}).get("PREFECT_HOME") == str(local.home)
    ]


@pytest.mark.parametrize("method", once("up", "down"))
def test_a_server_that_fails_while_it_is_asked_is_told_by_up_and_stopped_by_down(method: str, tmp_path: Path) -> None:
    class Failing(Answering):
        def do_GET(self) -> None:
            if self.path == "/api/health":
                self.answer(200)
            else:
                self.close_connection = True

        do_PATCH = do_POST = do_GET

    local = Local(tmp_path, PREFECT_CLIENT_MAX_RETRIES="0")
    with http_server(Failing, int(local.env["PORT"])), posing("server", local) as server:
        threading.Thread(target=server.wait, daemon=True).start()
        if method == "up":
            ended = local.python("-m", "deployments.local", "up")
            assert ended.returncode == 1 and "stopped answering while `headrace up` deployed" in ended.stderr
            assert "Traceback" not in ended.stderr
        else:
            with subprocess.Popen(
                [sys.executable, "-c", "import sys; sys.stdin.read()", "worker"], stdin=subprocess.PIPE
            ) as worker:
                (local.home / "worker.pid").write_text(str(worker.pid))
                threading.Thread(target=worker.wait, daemon=True).start()
                assert local.say("down") == "stopped the worker\nstopped the server\n"


def test_a_block_that_does_not_exist_is_bad_input(server: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    base = server["PREFECT_API_URL"]
    with PrefectHttpxSyncClient(base_url=base, raise_on_all_errors=False) as client, pytest.raises(SystemExit) as end:
        _block(client, "NOTIFY", "webhook", "nobody")
    assert end.value.code == 2 and "NOTIFY: the server has no webhook block 'nobody'" in capsys.readouterr().err


def test_schedules_that_are_left_empty_stay_as_they_are(tmp_path: Path) -> None:
    said = "from deployments import address; print(address.SCHEDULED[address.SCHEDULES])"
    assert Local(tmp_path, SCHEDULES="").python("-c", said).stdout == "None\n"


def test_a_shell_is_told_that_it_needs_the_password() -> None:
    open_to_all, guarded = exports(DEFAULTS), exports({**DEFAULTS, PASSWORD: "me:secret"})
    assert open_to_all == "export PREFECT_API_URL=http://127.0.0.1:4200/api"
    assert guarded.startswith(f"{open_to_all}\nexport PREFECT_API_AUTH_STRING=") and "secret" not in guarded


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


@pytest.mark.deep
def test_two_at_once_start_one_worker(tmp_path: Path) -> None:
    local, told = Local(tmp_path), write_python(tmp_path, f"echo $$ >> '{tmp_path}/pids'\nsleep 600")
    start = (
        "import sys, time; from deployments import local; sys.executable = sys.argv[1];"
        "local.answers, local.is_taken, local.register = lambda _: True, lambda _: False, lambda *_: time.sleep(2);"
        "sys.exit(local.up())"
    )
    both = [
        subprocess.Popen([sys.executable, "-c", start, told], cwd=ROOT, env=local.env, stdout=subprocess.DEVNULL)
        for _ in range(2)
    ]
    assert [each.wait() for each in both] == [0, 0]
    wait_until(lambda: (tmp_path / "pids").exists(), 30)
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    local.say("down")
    left = [pid for pid in pids if alive(pid)]
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert len(pids) == 1 and not left


def test_a_running_worker_that_keeps_other_variables_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = [sys.executable, "-c", "import sys; sys.stdin.read()", "worker"]
    monkeypatch.setenv("AWS_PROFILE", "former")
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path))
    with subprocess.Popen(command, stdin=subprocess.PIPE) as worker:
        assert not _kept_by(psutil.Process(worker.pid))
        monkeypatch.setenv("AWS_PROFILE", "mine")
        monkeypatch.delenv("HEADRACE_CACHE")
        monkeypatch.setenv("HF_TOKEN", "mine")
        monkeypatch.setenv("TRACKIO_DIR", "mine")
        monkeypatch.setenv("WANDB_MODE", "online")
        kept = ["AWS_PROFILE", "HEADRACE_CACHE", "HF_TOKEN", "TRACKIO_DIR", "WANDB_MODE"]
        assert _kept_by(psutil.Process(worker.pid)) == kept


def test_what_is_not_given_is_as_the_server_that_runs_has_it(tmp_path: Path) -> None:
    said = (
        "from deployments.address import api, auth; from deployments.local import _differences, _settings, _started;"
        "started = _started(); settings = _settings(started);"
        "print(_differences(started, settings), api(settings), auth(settings))"
    )
    local = Local(tmp_path, **OWN, **{PASSWORD: "me:secret"})
    with posing("server", local):
        told = local.python("-c", said, LISTEN="", PORT="", DB="", **{PASSWORD: ""})
    assert told.stdout == f"[] http://localhost:{local.env['PORT']}/api ('me', 'secret')\n"
