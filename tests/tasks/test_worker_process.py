"""The worker process of a flow: stages run in it one after another, and a new worker is started when needed."""

import json
import logging
import os
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

import fsspec
import pytest

import tasks.stage
from tasks.stage import StageCrashed, Worker, load_early, run_stage
from tests import ROOT
from tests.depth import once
from tests.processes import alive, children, command_line, cores, meanwhile, stages, wait_until
from tests.support import data_values, write_traps
from tests.tasks.running import Prepared, ignore, log
from trainer.common.errors import EXIT_CRASHED, EXIT_PREEMPTED, Preempted
from trainer.common.stopping import signal_handlers, stop_requested
from trainer.pipelines.worker import _close_files, _use, is_spent, run_rank
from trainer.store.storage import Store

REFUSED = {"job": 5}
"""Arguments that every stage refuses at once."""


def run(name: str, arguments: dict[str, Any]) -> None:
    """Run a stage, on all cores."""
    run_stage(name, arguments, ignore, log)


def idle() -> list[int]:
    return [worker.process.pid for worker in tasks.stage._idle]


def reuse(prepared: Prepared) -> int:
    """Run a stage that finds its work finished; return its process."""
    run("tokenizer", {"job": data_values(prepared.values)})
    return idle()[-1]


def given(pid: int) -> dict[str, str]:
    """The environment of a process at its start."""
    pairs = Path(f"/proc/{pid}/environ").read_text().split("\0")
    return dict(pair.split("=", 1) for pair in pairs if pair)


def test_stages_run_in_one_process_until_one_fails(prepared: Prepared) -> None:
    first = reuse(prepared)
    assert reuse(prepared) == first
    assert os.getpgid(first) == os.getpgid(0)
    with pytest.raises(StageCrashed):
        run("tokenizer", REFUSED)
    assert not alive(first)
    assert reuse(prepared) != first


def test_a_stage_is_given_what_this_process_has_when_it_is_started(
    prepared: Prepared, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    before = reuse(prepared)
    monkeypatch.setenv("HEADRACE_TRIED", "1")
    changed = reuse(prepared)
    assert changed != before and given(changed)["HEADRACE_TRIED"] == "1"
    assert not alive(before)
    monkeypatch.setenv("PYTHONPATH", os.getcwd())
    monkeypatch.chdir(tmp_path)
    moved = reuse(prepared)
    assert Path(f"/proc/{moved}/cwd").readlink() == tmp_path
    with cores(1):
        load_early("trainer.data.tokenizer_training")
        assert os.sched_getaffinity(idle()[-1]) == os.sched_getaffinity(0)


@pytest.mark.parametrize("ranks", once(1, 2))
def test_no_process_of_a_stage_imports_modules_of_the_current_folder(
    ranks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    imported = write_traps(tmp_path)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StageCrashed, match="'int' object has no attribute 'store'"):
        run_stage("tokenizer", REFUSED, ignore, log, ranks)
    assert not imported.exists(), imported.read_text()


def test_a_function_in_the_current_folder_is_found_by_a_stage_and_its_workers(
    prepared: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "words_here.py").write_text("LEAST = 0\n")
    judge = "from words_here import LEAST\ndef judge(text): return len(text) > LEAST\n"
    (tmp_path / "judges_here.py").write_text(judge)
    monkeypatch.chdir(tmp_path)
    data = {
        **prepared.values["data"],
        "curation": {"filters": [{"kind": "function", "function": "judges_here:judge"}]},
        "workers": 2,
    }
    job = {"store": str(tmp_path / "store"), "name": "judged", "data": data}
    assert run_stage("curate", {"job": job}, ignore, log)["key"].startswith("decisions/")


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_an_idle_worker_ends_by_a_signal_and_the_next_stage_has_another(
    prepared: Prepared, signum: signal.Signals
) -> None:
    worker = reuse(prepared)
    os.kill(worker, signum)
    process = tasks.stage._idle[-1].process
    wait_until(lambda: process.poll() is not None)
    assert reuse(prepared) != worker


def test_a_worker_that_is_killed_just_when_it_is_taken_does_not_fail_the_stage(
    prepared: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed: list[int] = []

    def fits(worker: Worker) -> bool:
        killed.append(worker.process.pid)
        worker.process.kill()
        return True

    worker = reuse(prepared)
    monkeypatch.setattr(Worker, "fits", fits)
    assert reuse(prepared) != worker
    assert killed == [worker]


def test_a_worker_takes_the_credentials_that_were_loaded_meanwhile(
    prepared: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = reuse(prepared)
    monkeypatch.setenv("AWS_PROFILE", "loaded-meanwhile")
    assert reuse(prepared) == worker


def test_credentials_of_a_request_replace_those_of_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {"AWS_PROFILE": "former", "AWS_ACCESS_KEY_ID": "former", "HOME": "/"})
    with fsspec.open("memory://kept", "wb"):
        assert fsspec.get_filesystem_class("memory")._cache
    _use({"AWS_PROFILE": "loaded-meanwhile"})
    assert os.environ == {"AWS_PROFILE": "loaded-meanwhile", "HOME": "/"}
    assert not fsspec.get_filesystem_class("memory")._cache


def test_a_worker_is_no_rank_of_whatever_the_environment_speaks_of(
    prepared: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    reuse(prepared)


def test_a_worker_whose_stage_is_broken_off_runs_no_other_one() -> None:
    with pytest.raises(KeyboardInterrupt), tasks.stage._worker(alone=False) as worker:
        raise KeyboardInterrupt  # the second one, while the worker saves
    assert worker not in tasks.stage._idle
    wait_until(lambda: worker.process.poll() is not None)
    worker.end()


def test_a_worker_ends_when_a_request_is_cut_short() -> None:
    command = [sys.executable, "-m", "trainer.pipelines.worker"]
    ended = subprocess.run(command, cwd=ROOT, input=b'{"stage": "tok', stderr=subprocess.PIPE, timeout=60)
    assert ended.returncode == EXIT_PREEMPTED


def test_a_worker_ends_with_its_parent_though_a_fork_of_that_lives(prepared: Prepared) -> None:
    reuse(prepared)
    (worker,) = tasks.stage._idle
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # that there are threads
        fork = os.fork()
    if not fork:
        time.sleep(60)
        os._exit(0)
    worker.end()
    os.kill(fork, signal.SIGKILL)
    os.waitpid(fork, 0)
    assert worker.process.returncode == EXIT_PREEMPTED, "it need not be killed"


def test_no_worker_waits_beside_one_of_several_ranks(prepared: Prepared) -> None:
    idle = reuse(prepared)
    with tasks.stage._worker(alone=True):
        assert not alive(idle)


def test_stages_that_run_at_the_same_time_have_a_worker_each(prepared: Prepared) -> None:
    worker = reuse(prepared)
    os.kill(worker, signal.SIGSTOP)
    with meanwhile(lambda: reuse(prepared)):
        wait_until(lambda: worker not in idle())
        second = reuse(prepared)
        assert second != worker
        os.kill(worker, signal.SIGCONT)
    assert idle() == [worker], "one is enough to wait"
    assert not alive(second)


def test_a_worker_that_does_not_end_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.stage.END_SECONDS", 0.2)
    worker = Worker()
    os.kill(worker.process.pid, signal.SIGSTOP)
    worker.end()
    assert not alive(worker.process.pid)


def test_a_process_that_used_a_gpu_or_joined_a_cluster_runs_no_other_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    assert not is_spent()
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    assert is_spent()
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "ray", ModuleType("ray"))
    assert is_spent()


def test_what_is_kept_of_files_is_let_go_of_between_stages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path))
    store = Store("memory://let-go")
    store.write_bytes("a", b"1")
    listings = fsspec.filesystem("s3", anon=True).dircache
    for _ in range(2):
        copy = store.fetch("a")
        listings["bucket"] = []
        _close_files()
        assert not copy.exists() and list((tmp_path / "work").iterdir()) == []
        assert "bucket" not in listings


@pytest.mark.parametrize("launched", [True, False])
def test_a_stage_that_fails_says_how_many_lines_it_left_out(
    launched: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(progress: object) -> None:
        for _ in range(300):
            logging.getLogger("stage").info("a line")
        raise ValueError("failed")

    monkeypatch.setenv("RANK", "0")
    monkeypatch.setattr(logging.root, "handlers", [])
    monkeypatch.setattr("trainer.pipelines.worker.stage", lambda name: fail)
    assert run_rank("tokenizer", {}, launched) == EXIT_CRASHED
    said = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert "100 lines are left out" in said[-2]["message"] and said[-1]["event"] == "error"


def test_a_stop_before_a_stage_is_started_is_heeded() -> None:
    with pytest.raises(Preempted), signal_handlers():
        os.kill(os.getpid(), signal.SIGTERM)
        wait_until(stop_requested)
        run("tokenizer", REFUSED)
    assert not stages(os.getpid())


def test_a_stop_does_not_wait_for_the_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_TRIED", "4")  # a new worker, which loads for seconds
    known = set(children(os.getpid()))

    def serving() -> bool:
        new = {*children(os.getpid())} - known
        return any("trainer.pipelines.worker" in command_line(pid) for pid in new)

    def stop() -> None:
        wait_until(serving)
        os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Preempted), signal_handlers(), meanwhile(stop):
        run("train", REFUSED)
    wait_until(lambda: not serving())


@pytest.mark.deep
@pytest.mark.slow
def test_a_stage_computes_the_same_whatever_ran_before_it_in_its_process(prepared: Prepared) -> None:
    def train(name: str, **training: Any) -> bytes:
        job = {**prepared.values, "run": name, "training": {**prepared.values["training"], **training}}
        run("train", {"job": job, "data": prepared.data})
        return Path(prepared.values["store"], "runs", name, "final/model.safetensors").read_bytes()

    alone = train("alone")
    worker = idle()[-1]
    train("other", precision="bf16", deterministic=True, seed=7)
    assert train("after") == alone
    assert idle()[-1] == worker
