"""Asked to stop by a signal: wherever it lands, a command ends with 75 in time, and nothing is lost."""

import json
import os
import pty
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import trainer.kinds.pretraining.measure
from tests import ROOT
from tests.depth import once
from tests.processes import (
    Ended,
    being_written,
    children,
    command_line,
    finish,
    rank_envs,
    start_ranks,
    start_warm,
    wait_until,
)
from tests.support import curve, final_bytes, held_out_losses, published, small_job, small_values, write_config
from trainer.common.errors import EXIT_BAD_INPUT, EXIT_PREEMPTED, Preempted
from trainer.common.progress import silent
from trainer.pipelines.any_kind import train
from trainer.training.runtime import Runtime

COMMAND = """
import atexit, gc, os, signal, sys, threading, time, weakref
from trainer.common.process import on_rank
from trainer.common.stopping import check_stop, defer_stop, install_signal_handlers, leave, stop_requested

signal.signal(signal.SIGHUP, signal.SIG_DFL)  # also if the tests run under nohup

def ask(signum=signal.SIGTERM):
    os.kill(os.getpid(), signum)

def go_on():
    while True:
        check_stop()
        time.sleep(0.01)

install_signal_handlers({latest})
sys.exit(leave(on_rank({work})))
"""


def command(work: str, before: str = "", latest: float = 5.0) -> Ended:
    """What comes of a command that does `work`, a function's name, after some lines that define it."""
    text = COMMAND.format(work=work, latest=latest).replace(
        "\ninstall_signal_handlers", f"\n{before}\ninstall_signal_handlers", 1
    )
    ended = subprocess.run([sys.executable, "-c", text], cwd=ROOT, capture_output=True, text=True, timeout=60)
    return Ended(ended.returncode, ended.stdout, ended.stderr)


def test_a_command_whose_terminal_is_closed_ends_as_if_it_was_asked_to_stop() -> None:
    text = COMMAND.format(work="lambda: (print('working', flush=True), go_on())", latest=5.0)
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(ROOT)
        os.execv(sys.executable, [sys.executable, "-c", text])
    said = b""
    while b"working" not in said:
        said += os.read(terminal, 1000)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == EXIT_PREEMPTED


@pytest.mark.parametrize("signum", ["SIGTERM", "SIGINT", "SIGHUP"])
def test_a_request_in_a_callback_that_swallows_errors_is_heeded(signum: str) -> None:
    ended = command(
        "work",
        f"""
class Thing: pass
def work():
    thing = Thing()
    watcher = weakref.ref(thing, lambda gone: ask(signal.{signum}))
    del thing
    go_on()
""",
    )
    assert ended.status == EXIT_PREEMPTED, ended
    assert ended.stderr == "asked to stop: finished work is kept; run it again to continue\n"


def test_under_nohup_closing_the_terminal_asks_nothing_of_a_process_or_its_forks() -> None:
    ended = command(
        "work",
        """
def work():
    child = os.fork()
    ask(signal.SIGHUP)
    if child == 0:
        os._exit(7)
    assert os.waitpid(child, 0)[1] == 7 << 8
    time.sleep(0.3)
    check_stop()
    print("went on", flush=True)

signal.signal(signal.SIGHUP, signal.SIG_IGN)
""",
    )
    assert (ended.status, ended.stdout) == (0, "went on\n"), ended


def test_a_request_during_an_import_that_is_only_tried_is_heeded(tmp_path: Path) -> None:
    (tmp_path / "tried.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGTERM)\n")
    ended = command(
        "work",
        f"""
def work():
    sys.path.insert(0, {str(tmp_path)!r})
    try:
        import tried
    except BaseException:
        pass
    go_on()
""",
    )
    assert ended.status == EXIT_PREEMPTED, ended


def test_a_command_that_looks_at_nothing_is_ended_in_time_with_its_children() -> None:
    began = time.monotonic()
    ended = command(
        "work",
        """
import subprocess
def work():
    child = subprocess.Popen(["sleep", "100"])
    print(child.pid, flush=True)
    ask()
    threading.Lock().acquire() and child.wait()
""",
        latest=0.5,
    )
    assert ended.status == EXIT_PREEMPTED, ended
    assert "forced to stop after 0.5 s" in ended.stderr
    assert time.monotonic() - began < 20
    wait_until(lambda: not Path(f"/proc/{ended.stdout.strip()}").exists(), seconds=10)


def test_a_command_that_can_start_no_thread_is_ended_in_time() -> None:
    """As when Python 3.12 waits for the threads of a command that has ended."""
    ended = command(
        "work",
        """
from trainer.common.stopping import on_forced_end
def refuse(thread):
    raise RuntimeError("can't create new thread at interpreter shutdown")
def work():
    threading.Thread(target=time.sleep, args=(50,)).start()
    threading.Thread.start = refuse
    on_forced_end(lambda: None)
    ask()
    check_stop()
""",
        latest=0.5,
    )
    assert ended.status == EXIT_PREEMPTED and "forced to stop after 0.5 s" in ended.stderr, ended


def test_what_must_come_to_its_end_does_however_long_it_takes() -> None:
    ended = command(
        "work",
        """
def work():
    with defer_stop():
        ask()
        time.sleep(1.5)
        check_stop()
        print("finished", flush=True)
    check_stop()
    print("went on", flush=True)
""",
        latest=0.3,
    )
    assert (ended.status, ended.stdout) == (EXIT_PREEMPTED, "finished\n"), ended


def test_a_request_while_the_interpreter_ends_changes_nothing() -> None:
    ended = command(
        "work",
        """
atexit.register(ask)
atexit.register(ask, signal.SIGINT)
def work():
    ask()
    ask()
    go_on()
""",
    )
    assert ended.status == EXIT_PREEMPTED, ended
    ended = command("work", "atexit.register(ask)\ndef work(): pass")
    assert ended.status == 0, ended


def test_an_error_that_a_stop_has_led_to_is_no_crash_and_others_are() -> None:
    lines = "def work():\n    {}\n    raise RuntimeError('a worker is gone')"
    assert command("work", lines.format("ask()")).status == EXIT_PREEMPTED
    assert command("work", lines.format("pass")).status == 1


def test_a_signal_to_a_forked_child_is_the_childs_own() -> None:
    ended = command(
        "work",
        """
def work():
    child = os.fork()
    if child == 0:
        ask()
        time.sleep(30)
    assert os.waitpid(child, 0)[1] == signal.SIGTERM
    time.sleep(0.3)
    check_stop()
    print("went on", flush=True)
""",
    )
    assert (ended.status, ended.stdout) == (0, "went on\n"), ended


@pytest.fixture
def config(raw: Path, tmp_path: Path) -> Path:
    return write_config(tmp_path / "job.yaml", small_values(raw, tmp_path / "store"))


def engines(store: Path) -> set[str]:
    """The engines that a store's shards were made with."""
    return {json.loads(path.read_text())["details"]["engine"] for path in store.glob("shards/*/manifest.json")}


@pytest.mark.deep
def test_a_request_while_an_engine_is_loaded_does_not_choose_the_slower_one(config: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    ended = start_warm(tmp_path / "stopped", "tests.asked", "awkward", "--", "trainer.__main__", config).wait()
    assert ended.status == EXIT_PREEMPTED, ended
    assert list(store.glob("tokenizers/*")) and not engines(store)
    assert not list(store.glob(".staging/*"))
    finish(tmp_path / "last", config)
    assert engines(store) == {"gigatoken"}


def test_workers_break_off_when_only_their_parent_is_asked_to_stop(raw: Path, tmp_path: Path) -> None:
    text = (raw / "docs.jsonl").read_bytes()
    for number in range(2):
        (tmp_path / f"{number}.jsonl").write_bytes(text * 4000)
    values = small_values(raw, tmp_path / "store", data__shards={"num_shards": 2, "piece_bytes": 2**26})
    values["data"]["corpora"] = [{"name": "large", "paths": [f"{tmp_path}/*.jsonl"], "format": "jsonl"}]
    values["data"]["tokenizer"] |= {"engine": "tokenizers", "sample_bytes": 10_000}
    config = write_config(tmp_path / "job.yaml", values)
    running = start_warm(tmp_path / "said", "trainer.__main__", config)
    wait_until(lambda: being_written(tmp_path / "store", "*/*.bin") or running.status() is not None)
    workers = [pid for pid in children(running.pid) if "spawn_main" in command_line(pid)]
    began = time.monotonic()
    ended = running.send_when(signal.SIGTERM, lambda: True)
    assert ended.status == EXIT_PREEMPTED, ended
    assert "forced to stop" not in ended.stderr and time.monotonic() - began < 6
    assert workers and not any(Path(f"/proc/{pid}").exists() for pid in workers)
    assert not list(tmp_path.glob("store/.staging/*")) and not list(tmp_path.glob("store/shards/*/manifest.json"))


@pytest.mark.deep
@pytest.mark.parametrize(("step", "sharding"), once((4, "none"), (0, "none"), (6, "none"), (4, "fsdp"), (6, "fsdp")))
def test_an_evaluation_that_is_broken_off_is_made_when_training_continues(
    raw: Path,
    stocked: Path,
    runtime: Runtime,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    step: int,
    sharding: str,
) -> None:
    changes: dict[str, Any] = {
        "run": "one", "training__max_steps": 8, "training__evaluate_every": 2, "evaluation__batch": 1,
        "training__save_every": 4, "evaluation__during_training": 16, "training__sharding": sharding,
    }  # fmt: skip
    undisturbed = small_job(raw, stocked.rename(tmp_path / "undisturbed"), **changes)
    stopped = small_job(raw, Path(shutil.copytree(tmp_path / "undisturbed", tmp_path / "stopped")), **changes)
    train(undisturbed, silent())
    losses, seen = trainer.kinds.pretraining.measure.token_losses_in_pieces, [0]

    def ask_in_between(*arguments: Any) -> Any:
        seen[0] += 1
        if seen[0] == step // 2 * 32 + 3:
            signal.raise_signal(signal.SIGTERM)
        return losses(*arguments)

    monkeypatch.setattr(trainer.kinds.pretraining.measure, "token_losses_in_pieces", ask_in_between)
    with pytest.raises(Preempted):
        train(stopped, silent())
    assert seen[0] == step // 2 * 32 + 3, "not another batch"
    monkeypatch.undo()
    train(stopped, silent())
    one, other = Path(undisturbed.store), Path(stopped.store)
    assert held_out_losses(one) == held_out_losses(other) and curve(one) == curve(other)
    assert final_bytes(one) == final_bytes(other)
    expected, found = published(one, str(one)), published(other, str(other))
    assert {name: found.get(name) for name in expected} == expected


def test_ranks_tell_each_its_own_error_with_its_number(stocked: Path, config: Path, tmp_path: Path) -> None:
    ended = [
        rank.wait()
        for rank in start_ranks(
            tmp_path / "said", 2, "trainer.__main__", config, f"store={stocked}", "training.global_batch=9"
        )
    ]
    assert [rank.status for rank in ended] == [EXIT_BAD_INPUT, EXIT_BAD_INPUT], ended
    assert "[rank 0] ConfigError: " in ended[0].stderr and "Error" not in ended[1].stderr, ended
    ended = [
        rank.wait()
        for rank in start_ranks(tmp_path / "again", 2, "trainer.__main__", config, "training.precision=nothing")
    ]
    for number, rank in enumerate(ended):
        assert rank.stderr.startswith(f"[rank {number}] ConfigError: "), rank


def test_a_store_that_the_ranks_do_not_share_is_refused_at_once(config: Path, tmp_path: Path) -> None:
    running = [
        start_warm(tmp_path / f"said-{rank}", "trainer.__main__", config, f"store={tmp_path}/store-{rank}", env=env)
        for rank, env in enumerate(rank_envs(2))
    ]
    ended = [rank.wait() for rank in running]
    assert [rank.status for rank in ended] == [EXIT_BAD_INPUT, EXIT_BAD_INPUT], ended
    for number, rank in enumerate(ended):
        assert (
            f"[rank {number}] StorageError: the store {tmp_path}/store-{number} is not shared: rank 1 of 2"
            in rank.stderr
        )
    assert not any(path.is_file() for path in tmp_path.glob("store-*/**/*"))
