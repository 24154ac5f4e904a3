"""The temporary Prefect server of a command without a configured one."""

import fcntl
import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import TextIO

import httpx
import psutil
import pytest
from prefect.settings import Settings

from flows.temporary_server import START_LOCK, TemporaryServer, past_proxies, seconds_to_start, start_loading
from tests.depth import once
from tests.processes import Running, alive, children, command_line, descendants, start_module, wait_until
from tests.support import data_values, small_values, write_config, write_corpora, write_traps
from trainer.common.errors import EXIT_BAD_INPUT, EXIT_PREEMPTED, ConfigError


def start_preparing(folder: Path, **given: str) -> Running:
    """`headrace prepare` in a process without a configured server, with a new database."""
    config = write_config(
        folder / "job.yaml", data_values(small_values(write_corpora(folder / "raw"), folder / "store"))
    )
    env = {"PREFECT_HOME": str(folder / "prefect"), **given}
    return start_module(folder / "said", "flows.command", "prepare", config, env=env)


def servers_of(pid: int) -> list[int]:
    return [each for each in descendants(pid) if "flows.temporary_server" in command_line(each)]


def waits_for_a_lock(pid: int) -> bool:
    waiting = [line.split() for line in Path("/proc/locks").read_text().splitlines() if "->" in line]
    return str(pid) in [words[5] for words in waiting]


def locked(file: TextIO) -> bool:
    """Lock a file without waiting; return whether that was possible."""
    with suppress(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


@pytest.mark.deep
def test_a_command_that_knows_of_no_server_has_one_of_its_own_which_ends_with_it(tmp_path: Path) -> None:
    to_nobody = {"PREFECT_SERVER_ANALYTICS_ENABLED": "true", "HTTPS_PROXY": "http://127.0.0.1:9"}
    command = start_preparing(tmp_path, **to_nobody)
    wait_until(lambda: bool(servers_of(command.pid)))
    (server,) = servers_of(command.pid)
    ended = command.wait()
    assert ended.status == 0, ended
    assert "telemetry" not in ended.stdout + ended.stderr, "it sends none, so it does not complain that it cannot"
    assert not alive(server)
    assert (tmp_path / "prefect" / "prefect.db").exists()
    assert "View at" not in ended.stdout + ended.stderr, "it has no pages"


@pytest.mark.deep
def test_it_takes_a_job_that_lists_very_many_paths(tmp_path: Path) -> None:
    values, raw = small_values(tmp_path, tmp_path / "store"), tmp_path / "raw"
    raw.mkdir()
    paths = [raw / f"{number:05}-{'n' * 200}.txt" for number in range(2500)]
    for path in paths:
        path.write_text(f"{path.name}\n")
    values["data"]["corpora"] = [{"name": "many", "paths": list(map(str, paths))}]
    config = write_config(tmp_path / "job.yaml", data_values(values))
    env = {"PREFECT_HOME": str(tmp_path / "prefect")}
    ended = start_module(tmp_path / "said", "flows.command", "prepare", config, env=env).wait()
    assert ended.status == 0, ended.stderr[-2000:]


@pytest.mark.deep
def test_it_answers_only_its_command_and_only_its_user_can_read_its_database(tmp_path: Path) -> None:
    command = start_preparing(tmp_path)
    wait_until(lambda: bool(servers_of(command.pid)))
    (server,) = servers_of(command.pid)
    (port,) = {each.laddr.port for each in psutil.Process(server).net_connections("tcp") if each.status == "LISTEN"}
    asked = httpx.post(
        f"http://127.0.0.1:{port}/api/block_documents/filter", json={"include_secrets": True}, timeout=60
    )
    assert asked.status_code == httpx.codes.UNAUTHORIZED
    assert command.wait().status == 0
    assert (tmp_path / "prefect" / "prefect.db").stat().st_mode & 0o777 == 0o600


@pytest.mark.deep
def test_the_worker_that_loads_libraries_beside_it_runs_the_stages(tmp_path: Path) -> None:
    command = start_preparing(tmp_path)
    workers = set[int]()

    def has_ended() -> bool:
        workers.update(each for each in children(command.pid) if "trainer.pipelines.worker" in command_line(each))
        return command.status() is not None

    wait_until(has_ended)
    assert command.wait().status == 0
    assert len(workers) == 1


@pytest.mark.deep
def test_it_loads_no_collections_of_blocks(tmp_path: Path) -> None:
    """Loading prefect-aws takes a second."""
    ended = start_preparing(tmp_path, PYTHONPROFILEIMPORTTIME="1").wait()
    assert ended.status == 0
    loaded = {line.rpartition("|")[2].strip() for line in ended.stderr.splitlines() if line.startswith("import time:")}
    assert "prefect.server.api.server" in loaded and "prefect_aws" not in loaded


@pytest.mark.deep
@pytest.mark.parametrize("signum", once(signal.SIGINT, signal.SIGKILL))
def test_it_ends_however_the_command_ends(tmp_path: Path, signum: signal.Signals) -> None:
    command = start_preparing(tmp_path)
    wait_until(lambda: (tmp_path / "prefect" / "prefect.db").exists())
    found = descendants(command.pid)
    assert servers_of(command.pid)
    os.kill(command.pid, signum)
    command.wait()
    wait_until(lambda: not any(map(alive, found)), 30.0)


@pytest.mark.deep
def test_only_one_at_a_time_brings_the_database_up_to_date(tmp_path: Path) -> None:
    home = tmp_path / "prefect"
    home.mkdir()
    with open(home / START_LOCK, "w") as first:
        fcntl.flock(first, fcntl.LOCK_EX)
        command = start_preparing(tmp_path)
        wait_until(lambda: any(map(waits_for_a_lock, servers_of(command.pid))))
        assert not (home / "prefect.db").exists()
    with open(home / START_LOCK) as next_one:
        wait_until(lambda: (home / "prefect.db").exists() and locked(next_one))
        assert servers_of(command.pid), "it lets the next one start while it serves"
    assert command.wait().status == 0


@pytest.mark.deep
def test_a_command_that_is_told_of_a_server_starts_none(tmp_path: Path, server: dict[str, str]) -> None:
    command = start_preparing(tmp_path, **server)
    seen: list[int] = []
    wait_until(lambda: seen.extend(servers_of(command.pid)) or command.status() is not None)
    assert command.wait().status == 0
    assert not seen
    assert not (tmp_path / "prefect" / "prefect.db").exists()


@pytest.mark.deep
def test_a_command_asks_no_proxy_for_its_own_server(tmp_path: Path) -> None:
    ended = start_preparing(tmp_path, http_proxy="http://127.0.0.1:9", no_proxy="example.org").wait()
    assert ended.status == 0, ended


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, "127.0.0.1"),
        ({"NO_PROXY": "example.org"}, "example.org,127.0.0.1"),
        ({"NO_PROXY": "example.org", "no_proxy": "example.com"}, "example.com,127.0.0.1"),
        ({"no_proxy": "*"}, "*"),
    ],
)
def test_exceptions_from_proxies_are_kept(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, str], expected: str
) -> None:
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    assert past_proxies("127.0.0.1") == {"no_proxy": expected, "NO_PROXY": expected}


@pytest.mark.deep
def test_settings_that_forbid_it_are_heeded(tmp_path: Path) -> None:
    ended = start_preparing(tmp_path, PREFECT_SERVER_ALLOW_EPHEMERAL_MODE="false").wait()
    assert ended.status != 0
    assert "No Prefect API URL provided" in ended.stderr


@pytest.mark.deep
def test_a_server_that_takes_too_long_is_told_as_what_passes_by_itself(tmp_path: Path) -> None:
    ended = start_preparing(tmp_path, PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS="0").wait()
    assert ended.status == EXIT_PREEMPTED
    assert "the temporary Prefect server did not answer within 0 s; the machine may be too busy" in ended.stderr
    assert "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS" in ended.stderr


def test_a_user_without_a_home_folder_learns_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(number: int) -> None:
        raise KeyError(number)

    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", nobody)
    with pytest.raises(ConfigError, match="has no home folder, which Prefect needs: set HOME to a folder"):
        start_loading()


def test_a_busy_machine_has_minutes_to_start_it_unless_the_settings_say_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # Prefect reads the settings of the folder
    assert seconds_to_start(Settings()) == 180
    (tmp_path / "prefect.toml").write_text("[server.ephemeral]\nstartup_timeout_seconds = 20\n")
    assert seconds_to_start(Settings()) == 20


@pytest.mark.deep
def test_a_server_that_cannot_start_is_told_in_one_message(tmp_path: Path) -> None:
    database = "sqlite+aiosqlite:////proc/none/prefect.db"
    ended = start_preparing(tmp_path, PREFECT_API_DATABASE_CONNECTION_URL=database).wait()
    assert ended.status == EXIT_BAD_INPUT
    assert "ConfigError: the temporary Prefect server did not start: " in ended.stderr
    assert "httpx" not in ended.stderr
    assert "Fatal Python error" not in ended.stderr


def test_it_imports_no_modules_of_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: dict[str, str]
) -> None:
    imported = write_traps(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PREFECT_API_URL", server["PREFECT_API_URL"])  # with a server, it ends once it has read this
    temporary = TemporaryServer()
    assert temporary._process.wait() == 0
    temporary.end()
    assert not imported.exists(), imported.read_text()


def test_a_command_does_not_wait_for_ever_for_its_server_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flows.temporary_server.END_SECONDS", 0.2)
    known = set(descendants(os.getpid()))
    temporary = TemporaryServer()
    # Not by its command line: it has none for a moment while it is executed.
    (server,) = {*descendants(os.getpid())} - known
    os.kill(server, signal.SIGSTOP)
    temporary.end()
    assert not alive(server)
