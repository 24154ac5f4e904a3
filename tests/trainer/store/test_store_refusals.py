"""Stores that refuse: read-only, full, or not there. Said in one message, and what is published stays as it is."""

import errno
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest

from tests import ROOT
from tests.disks import fill, mounted, run_quietly, small_disk, unmounted_at_end
from tests.processes import Ended, finish, start_warm, wait_until
from tests.support import curve, digests, final_bytes, small_job, small_values, steps_recorded, write_config
from tests.trainer.made import prepare, prepare_tokenizer
from tests.trainer.small_jobs import LONG, Finished
from tests.trainer.test_refusals import PUBLISHED, message_of
from trainer.common.errors import EXIT_PREEMPTED, StorageError
from trainer.common.progress import silent
from trainer.common.transient import PATIENCE
from trainer.records.plans import PreparedData
from trainer.registry.report import make_report
from trainer.store.storage import Store

LACK = (
    r"(?:about (?P<needed>[\d,]+) bytes are needed, [\d,]+ are free at"
    r"|it takes more than the [\d,]+ bytes that were free at) .*; "
    "free some space there and run it again: finished work is kept"
)
"""Either more is needed than is free, or less is known of what it takes than there was."""


def run_with_tiny_files(config: Path) -> Ended:
    """The trainer where no file may grow beyond four bytes: what is left of a full disk where nothing can be
    mounted.
    """

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4, 4))

    command = [sys.executable, "-m", "trainer", str(config)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, preexec_fn=limit)
    return Ended(done.returncode, done.stdout, done.stderr)


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Make a folder read-only: by mounting it so, or by its mode, which binds all but root."""
    command = ["mount", "--bind", "-o", "ro", str(folder), str(folder)]
    if any(run_quietly([*sudo, *command]) for sudo in ([], ["sudo", "-n"])):
        with unmounted_at_end(folder):
            yield
        return
    folder.chmod(0o555)
    try:
        yield
    finally:
        folder.chmod(0o755)


def test_a_read_only_store_is_refused(raw: Path, stocked: Path, tmp_path: Path) -> None:
    before = digests(stocked, *PUBLISHED)
    config = write_config(tmp_path / "job.yaml", small_values(raw, stocked))
    with read_only(stocked):
        if os.access(stocked, os.W_OK):
            pytest.fail("this user writes everywhere and may not mount: nothing here can be made read-only")
        message = message_of(start_warm(tmp_path / "said", "trainer.__main__", config).wait())
    assert message.startswith("StorageError: ")
    assert f"{stocked}/.staging" in message
    assert "choose a" in message
    assert digests(stocked, *PUBLISHED) == before


IMPATIENT = {PATIENCE: "1"}


def test_a_full_disk_is_told_before_anything_is_done(raw: Path, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    config = write_config(tmp_path / "job.yaml", small_values(raw, disk / "store"))
    if mounted(disk, "size=64k"):
        with unmounted_at_end(disk):
            fill(disk)
            ended = start_warm(tmp_path / "said", "trainer.__main__", config, env=IMPATIENT).wait()
            message = message_of(ended, EXIT_PREEMPTED)
        assert re.search(
            r"No space left on device: about 5 bytes are needed, 0 are free at .*; free some space there", message
        )
    else:
        message = message_of(run_with_tiny_files(config))
        assert "File too large" in message
    assert message.startswith("StorageError: cannot write ")
    assert str(disk / "store") in message


def test_a_disk_that_is_too_small_for_the_job_is_refused_with_the_sizes(raw: Path, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    values = small_values(raw, disk / "store", training__keep_last=10**9, training__max_steps=10**9)
    ended = start_warm(tmp_path / "said", "trainer.__main__", write_config(tmp_path / "job.yaml", values)).wait()
    message = message_of(ended)
    assert message.startswith("StorageError: the job needs about ")
    assert f"{disk}/store" in message
    assert re.search(r"about [\d,.]+ [TG]iB on .* which has [\d.]+ [KMG]iB free", message)


def test_a_store_where_no_folder_can_be_made_is_refused(raw: Path, tmp_path: Path) -> None:
    config = write_config(tmp_path / "job.yaml", small_values(raw, Path("/proc/nowhere/store")))
    message = message_of(start_warm(tmp_path / "said", "trainer.__main__", config).wait())
    assert message.startswith("StorageError: cannot write /proc/nowhere/store")


@pytest.mark.parametrize(("needed", "written"), [(10, 0), (10, 3000), (None, 3000), (None, 0)])
def test_what_does_not_fit_is_never_said_to_need_less_than_there_was(
    needed: int | None, written: int, empty_store: Store
) -> None:
    with pytest.raises(StorageError) as caught, empty_store.staging(needed, "runs/x") as folder:
        (folder / "part").write_bytes(bytes(written))
        raise OSError(errno.ENOSPC, "full")
    message = str(caught.value)
    assert "needed" not in message
    found = re.search(r"it takes more than the ([\d,]+) bytes that were free at .*; free some space there", message)
    assert found is not None and int(found[1].replace(",", "")) > written


@pytest.mark.deep
@pytest.mark.slow
def test_a_disk_that_fills_up_during_training_and_stays_full_ends_it_and_is_no_loss_once_there_is_space(
    raw: Path, stocked: Path, finished: Finished, tmp_path: Path
) -> None:
    disk = tmp_path / "disk"
    own = mounted(disk, "size=12m")
    with unmounted_at_end(disk) if own else nullcontext():
        store = Path(shutil.copytree(stocked, disk / "store"))
        config = write_config(tmp_path / "job.yaml", small_values(raw, store, **LONG))
        running = start_warm(tmp_path / "full", "trainer.__main__", config, env=IMPATIENT)
        wait_until(lambda: steps_recorded(store) >= 5 or running.status() is not None)
        running.send(signal.SIGSTOP)
        if own:
            fill(disk)
        else:
            resource.prlimit(running.pid, resource.RLIMIT_FSIZE, (1000, 1000))
        running.send(signal.SIGCONT)
        ended = running.wait()
        if own:
            message = message_of(ended, EXIT_PREEMPTED)
            place = r"cannot write .*/(checkpoints/step-\d+|checkpoint-last|metrics.jsonl): No space left on device: "
            needed = re.match(f"StorageError: (?:.*: )?{place}{LACK}", message)
            assert needed is not None, message
            if needed[1].startswith("checkpoints/") and needed["needed"]:
                checkpoint = next((finished.store / finished.run / "checkpoints").iterdir())
                size = sum(path.stat().st_size for path in checkpoint.iterdir())
                assert int(needed["needed"].replace(",", "")) == pytest.approx(size, rel=0.5)
            (disk / "filler").unlink()
        assert ended.status > 0
        (ended,) = finish(tmp_path / "again", config)
        assert "continuing from" in ended.stderr
        assert final_bytes(store) == final_bytes(finished.store)
        assert curve(store) == curve(finished.store)


SHORT = r"cannot write .*{key}: No space left on device: " + LACK


def test_a_disk_that_fills_up_while_shards_are_built_keeps_the_finished_ones(
    raw: Path, prepared: tuple[Path, PreparedData], tmp_path: Path
) -> None:
    with small_disk(tmp_path / "disk") as disk:
        store = disk / "store"
        job = small_job(raw, store).preparation()
        prepare_tokenizer(job, silent())
        fill(disk, leaving=3 * 2**12)  # for a hold, and what is remembered of the corpus
        with pytest.raises(StorageError, match=SHORT.format(key=r"shard-0000\d\.json")):
            prepare(job, silent())
        assert list((store / ".staging").iterdir()) == []
        (disk / "filler").unlink()
        prepare(job, silent())
        for path in (prepared[0] / "shards").rglob("*.bin"):
            assert (store / path.relative_to(prepared[0])).read_bytes() == path.read_bytes()


def test_a_report_that_does_not_fit_says_so_and_is_written_once_it_does(finished: Finished, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        store = Store(str(shutil.copytree(finished.store, disk / "store")))
        store.delete(f"{finished.run}/report.html")
        fill(disk)
        with pytest.raises(StorageError, match=SHORT.format(key="report.html")):
            make_report(store, finished.run)
        (disk / "filler").unlink()
        assert make_report(store, finished.run).key == f"{finished.run}/report.html"
        assert (disk / "store" / finished.run / "report.html").stat().st_size > 10_000
