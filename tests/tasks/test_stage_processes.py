"""Stages as forks of a process that has loaded their libraries, and as processes of their own where that is needed."""

import errno
import json
import logging
import os
import resource
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tasks import forked_stages
from tasks.forked_stages import ForkedStage
from tasks.stage_processes import CHOICE, forks, start_stage
from tests.depth import once
from tests.processes import alive, children, command_line, cores, wait_until
from tests.tasks.running import run
from trainer.common.errors import ConfigError, Preempted
from trainer.common.stopping import signal_handlers, stop_requested
from trainer.pipelines.stage_table import MODULES

REFUSED = {"job": 5}
"""Arguments that every stage refuses at once."""


@contextmanager
def stage(
    name: str = "tokenizer", arguments: dict[str, Any] = REFUSED
) -> Iterator[subprocess.Popen[str] | ForkedStage]:
    """A stage that was started; it is waited for at the end."""
    request = {
        "stage": name,
        "arguments": arguments,
        "ranks": 1,
        "engine": {"kind": "local"},
        "parent": os.getpid(),
        "roots": [],
    }
    with tempfile.TemporaryFile("w+") as file:
        json.dump(request, file)
        file.flush()
        with start_stage(name, file, 1, "local") as started:
            yield started
            started.communicate()


def server_of(started: subprocess.Popen[str] | ForkedStage) -> int:
    """The process that the stage that was started last is a fork of, which may have ended by now."""
    assert isinstance(started, ForkedStage)
    server = forked_stages._servers[-1]._process.pid
    assert "trainer.pipelines.fork_server" in command_line(server)
    return server


def given(pid: int) -> dict[str, str]:
    """The environment that a process was started with."""
    pairs = Path(f"/proc/{pid}/environ").read_text().split("\0")
    return dict(pair.split("=", 1) for pair in pairs if pair)


def test_stages_are_forks_of_one_process_that_ends_by_itself_and_not_by_a_stop() -> None:
    with stage() as first:
        server = server_of(first)
    assert first.returncode == 1
    for signum in (signal.SIGINT, signal.SIGTERM):  # as Ctrl-C and a cancel send them to the whole group
        os.kill(server, signum)
    with stage("tokenize") as second:
        assert server_of(second) == server
    assert os.getpgid(server) == os.getpgid(0)


def test_a_stage_is_given_what_this_process_has_when_it_is_started(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with stage() as started:
        before = server_of(started)
    monkeypatch.setenv("HEADRACE_TRIED", "1")
    with stage() as started:
        changed = server_of(started)
        assert changed != before
        assert given(changed)["HEADRACE_TRIED"] == "1"
    wait_until(lambda: not alive(before))
    monkeypatch.setenv("PYTHONPATH", os.getcwd())
    monkeypatch.chdir(tmp_path)
    with stage() as started:
        assert Path(f"/proc/{server_of(started)}/cwd").readlink() == tmp_path
    with cores(1), stage() as started:
        assert os.sched_getaffinity(server_of(started)) == os.sched_getaffinity(0)


def test_an_older_server_lives_as_long_as_its_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    with stage() as older:
        server = server_of(older)
        os.kill(older.pid, signal.SIGSTOP)
        monkeypatch.setenv("HEADRACE_TRIED", "2")
        with stage() as newer:
            assert server_of(newer) != server
        assert alive(server)
        os.kill(older.pid, signal.SIGCONT)
    assert older.returncode == 1
    wait_until(lambda: not alive(server))


def test_what_the_server_leaves_is_stopped_and_the_next_stage_has_another() -> None:
    with stage() as started:
        server = server_of(started)
        os.kill(started.pid, signal.SIGSTOP)
        os.kill(server, signal.SIGKILL)
        os.kill(started.pid, signal.SIGCONT)
    assert started.returncode == -signal.SIGKILL
    assert not alive(started.pid)
    with stage() as started:
        assert server_of(started) != server
    assert started.returncode == 1


def test_a_stage_whose_libraries_start_threads_is_a_process_of_its_own(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(MODULES, "tokenizer", "tests.tasks.threaded")
    monkeypatch.setenv("HEADRACE_TRIED", "3")  # so that no later test has this server
    with caplog.at_level(logging.WARNING), stage() as started:
        assert isinstance(started, subprocess.Popen)
    assert "stage tokenizer loads its libraries itself: they have started 1 threads" in caplog.text


@pytest.mark.deep
@pytest.mark.slow
@pytest.mark.parametrize("name", once("train", *sorted(MODULES.keys() - {"train"})))
def test_no_stages_libraries_start_threads(name: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), stage(name) as started:
        assert isinstance(started, ForkedStage), caplog.text
    assert started.returncode == 1


def test_stages_are_started_anew_where_that_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CHOICE, "spawn")
    with stage() as started:
        assert isinstance(started, subprocess.Popen)
    assert started.returncode == 1
    monkeypatch.setenv(CHOICE, "thread")
    with pytest.raises(ConfigError, match="HEADRACE_STAGES is 'thread'; set it to fork or spawn, or unset it"):
        run("tokenizer", REFUSED)


def test_where_there_is_a_gpu_stages_are_started_anew(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(CHOICE, raising=False)
    monkeypatch.setattr("tasks.stage_processes.ACCELERATORS", (f"{tmp_path}/nvidia[0-9]*",))
    assert forks()
    (tmp_path / "nvidia0").touch()
    assert not forks()
    monkeypatch.setenv(CHOICE, "fork")
    assert forks()


def test_where_there_are_no_pidfds_stages_are_started_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pid: int) -> int:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.delenv(CHOICE, raising=False)
    monkeypatch.setattr("os.pidfd_open", refuse)
    assert not forks()
    monkeypatch.setenv(CHOICE, "fork")
    with pytest.raises(ConfigError, match=r"needs Linux 5\.3 with pidfd_open; unset it"):
        forks()


def test_a_server_that_cannot_fork_says_so_and_its_stages_go_on(caplog: pytest.LogCaptureFixture) -> None:
    with stage() as first:
        server = server_of(first)
        os.kill(first.pid, signal.SIGSTOP)
        processes = resource.prlimit(server, resource.RLIMIT_NOFILE)
        resource.prlimit(server, resource.RLIMIT_NOFILE, (0, processes[1]))
        with caplog.at_level(logging.WARNING), stage() as second:
            assert isinstance(second, subprocess.Popen)
        resource.prlimit(server, resource.RLIMIT_NOFILE, processes)
        os.kill(first.pid, signal.SIGCONT)
    assert first.returncode == second.returncode == 1
    assert "stage tokenizer loads its libraries itself" in caplog.text
    with stage() as third:
        assert server_of(third) == server


def test_a_stage_is_waited_for_by_a_process_with_many_open_files() -> None:
    with ExitStack() as opened:
        for _ in range(1100):
            opened.enter_context(open(os.devnull))
        with stage() as started:
            server_of(started)
    assert started.returncode == 1


def test_a_stop_before_a_stage_is_started_is_heeded() -> None:
    with pytest.raises(Preempted), signal_handlers():
        os.kill(os.getpid(), signal.SIGTERM)
        wait_until(stop_requested)
        with stage():
            pytest.fail("it was started")


def test_a_stop_does_not_wait_for_the_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_TRIED", "4")  # a new server, which loads for seconds
    known = set(children(os.getpid()))

    def serving() -> bool:
        new = {*children(os.getpid())} - known
        return any("trainer.pipelines.fork_server" in command_line(pid) for pid in new)

    def stop() -> None:
        wait_until(serving)
        os.kill(os.getpid(), signal.SIGTERM)

    stopper = threading.Thread(target=stop)
    with pytest.raises(Preempted), signal_handlers():
        stopper.start()
        with stage("train"):
            pytest.fail("it was started")
    stopper.join()
    wait_until(lambda: not serving())
