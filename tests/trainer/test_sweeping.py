"""Sweeping the staging folder: what dead processes left goes, what may be in use stays."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.trainer.preparing import leftovers
from trainer.storage import STAGING, Store


def dead_process() -> int:
    """The id of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_sweeping_removes_what_dead_processes_left(empty_store: Store) -> None:
    folder = Path(empty_store.url, STAGING, f"{socket.gethostname()}_{dead_process()}_0123456789ab")
    folder.mkdir(parents=True)
    (folder / "half.bin").write_bytes(b"half")
    empty_store.sweep()
    assert leftovers(Path(empty_store.url)) == []


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")
def test_sweeping_removes_what_processes_left_that_ended_without_being_waited_for(empty_store: Store) -> None:
    process = subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.PIPE)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    folder = Path(empty_store.url, STAGING, f"{socket.gethostname()}_{process.pid}_0123456789ab")
    folder.mkdir(parents=True)
    empty_store.sweep()
    assert leftovers(Path(empty_store.url)) == []
    process.communicate()


def test_sweeping_keeps_what_may_be_in_use(empty_store: Store) -> None:
    with empty_store.staging() as live:
        elsewhere = live.parent / f"another-machine_{dead_process()}_0123456789ab"
        elsewhere.mkdir()
        foreign = live.parent / "probe-0123456789ab"
        foreign.touch()
        empty_store.sweep()
        assert {live.name, elsewhere.name, foreign.name} == set(leftovers(Path(empty_store.url)))


def test_sweeping_a_store_that_does_not_exist_does_nothing(empty_store: Store) -> None:
    for store in (empty_store, Store("memory://nothing-here")):
        store.sweep()
        assert not store.exists("")
