"""Workers that are asked to stop while they start, as Ctrl-C asks a whole group: they end, and say nothing."""

import os
import signal
import subprocess
import sys
import time

import pytest

from tests import ROOT
from trainer.common.errors import EXIT_PREEMPTED

WORK = """
import signal
import sys
from trainer.common.process import on_rank
from trainer.common.stopping import check_stop, install_signal_handlers, leave, wait

def work():
    from trainer.data.shard_building import report_to_parent
    from trainer.data.shard_building import Workers
    with Workers(2) as workers:
        for _ in range(2):
            workers._started().submit(report_to_parent, 1)
        print("starting", flush=True)
        while True:
            wait(0.05)
            check_stop()

signal.signal(signal.SIGHUP, signal.SIG_DFL)  # also if the tests run under nohup
install_signal_handlers()
sys.exit(leave(on_rank(work)))
"""


OFTEN = [0.06, 0.3, 1.2]
SELDOM = [0.0, 0.03, 0.1, 0.15, 0.2, 0.5, 0.8, 2.0]


CLOSED = pytest.param(0.3, signal.SIGHUP, id="closed terminal")


@pytest.mark.parametrize(
    ("after", "signum"),
    [
        CLOSED,
        *((each, signal.SIGINT) for each in OFTEN),
        *(pytest.param(each, signal.SIGINT, marks=pytest.mark.deep) for each in SELDOM),
    ],
)
def test_a_group_that_is_interrupted_while_workers_start_ends_without_a_traceback(after: float, signum: int) -> None:
    started = subprocess.Popen(
        [sys.executable, "-c", WORK],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        start_new_session=True,
    )
    assert started.stdout is not None and started.stdout.readline() == "starting\n"
    time.sleep(after)
    os.killpg(started.pid, signum)
    _, said = started.communicate(timeout=60)
    assert (started.returncode, "Traceback" in said) == (EXIT_PREEMPTED, False), said
    assert "resource_tracker" not in said


@pytest.mark.parametrize(
    ("mount", "told", "status"),
    [
        ("mount -t tmpfs -o size=4k none /dev/shm && echo > /dev/shm/full", "No space left", 75),
        ("mount -t tmpfs -o ro none /dev/shm", "Read-only file system", 2),
    ],
)
def test_shared_memory_that_cannot_be_written_is_named(mount: str, told: str, status: int) -> None:
    alone = ["unshare", "--mount", "--propagation", "private", "sh", "-c"]
    if subprocess.run([*alone, mount], check=False, capture_output=True).returncode:
        pytest.skip("mounting a file system is not allowed here")
    command = [*alone, f'{mount} && exec "$@"', "sh"]
    asked = subprocess.run([*command, sys.executable, "-c", WORK], cwd=ROOT, capture_output=True, text=True)
    assert asked.returncode == status
    assert asked.stderr.startswith(f"StorageError: cannot start worker processes: {told}")
    assert "/dev/shm" in asked.stderr
