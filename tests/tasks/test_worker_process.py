"""The worker process of a flow: stages run in it one after another, and others where that is needed."""

import os
import signal
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import tasks.stage
from tasks.stage import StageCrashed, Worker, load_early, run_stage
from tests.processes import alive, children, command_line, cores, stages, wait_until
from tests.tasks.running import Prepared, ignore, log
from trainer.common.errors import Preempted
from trainer.common.stopping import signal_handlers, stop_requested
from trainer.pipelines.worker import is_spent

REFUSED = {"job": 5}
"""Arguments that every stage refuses at once."""


def run(name: str, arguments: dict[str, Any]) -> None:
    """Run a stage, on all cores."""
    run_stage(name, arguments, ignore, log)


def idle() -> list[int]:
    return [worker.process.pid for worker in tasks.stage._idle]


def reuse(prepared: Prepared) -> int:
    """Run a stage that finds its work done; returns the process in which it ran."""
    run("tokenizer", {"job": {key: prepared.values[key] for key in ("store", "name", "data")}})
    return idle()[-1]


def given(pid: int) -> dict[str, str]:
    """The environment that a process was started with."""
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


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_an_idle_worker_ends_by_a_signal_and_the_next_stage_has_another(
    prepared: Prepared, signum: signal.Signals
) -> None:
    worker = reuse(prepared)
    os.kill(worker, signum)
    process = tasks.stage._idle[-1].process
    wait_until(lambda: process.poll() is not None)
    assert reuse(prepared) != worker


def test_stages_that_run_at_the_same_time_have_a_worker_each(prepared: Prepared) -> None:
    worker = reuse(prepared)
    os.kill(worker, signal.SIGSTOP)
    first = threading.Thread(target=reuse, args=(prepared,))
    first.start()
    wait_until(lambda: worker not in idle())
    second = reuse(prepared)
    assert second != worker
    os.kill(worker, signal.SIGCONT)
    first.join()
    assert {worker, second} <= {*idle()}


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

    stopper = threading.Thread(target=stop)
    with pytest.raises(Preempted), signal_handlers():
        stopper.start()
        run("train", REFUSED)
    stopper.join()
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
