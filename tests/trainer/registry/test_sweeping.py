"""Sweeping private folders: what dead processes left goes, what may be in use stays."""

import errno
import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests import ROOT
from tests.trainer.preparing import leftovers
from trainer.store.private_folders import OLD_SECONDS, PrivateFolder, sweep
from trainer.store.probes import check_writable
from trainer.store.storage import STAGING, Store

STAGES = """
import os, socket, sys
from pathlib import Path
from trainer.store.storage import Store

url, cache, host, pid = sys.argv[1:]
os.environ["HEADRACE_CACHE"] = cache
if host: socket.gethostname = lambda: host
if pid: os.getpid = lambda: int(pid)
store = Store(url)
def stay():
    print("ready", flush=True)
    sys.stdin.read()
"""
HOLDS = (
    STAGES
    + """
with store.staging() as folder:
    (folder / "half.bin").write_bytes(b"half")
    stay()
"""
)
FETCHES = (
    STAGES
    + """
store.write_bytes("a", b"1")
store.fetch("a", "6b86b273ff34fce19d6b804eff5a3f5747ada4eaa22f1d49c01e52ddb7875b4b")
stay()
"""
)
FORKS = (
    STAGES
    + """
with store.staging() as folder:
    child = os.fork()
    if child == 0:
        stay()
        sys.exit()
    sys.stdin.read()
    print(os.waitpid(child, 0)[1], folder.exists(), flush=True)
"""
)
FORKS_AND_FETCHES = (
    STAGES
    + """
store.write_bytes("a", b"1")
mine = store.fetch("a")
child = os.fork()
if child == 0:
    theirs = Store(url).fetch("a")
    print(theirs != mine, flush=True)
    Store(url).release("a")
    sys.exit()
print(os.waitpid(child, 0)[1], mine.read_bytes(), flush=True)
"""
)

DIES_LOOKING = (
    STAGES
    + """
from trainer.store.local import LocalFiles
from trainer.store.private_folders import PrivateFolder
from trainer.store.probes import check_writable

def die(*arguments, **options):
    os.kill(os.getpid(), 9)
LocalFiles.delete = die
if host == "private": PrivateFolder.remove = die
check_writable(store)
"""
)


@contextmanager
def running(
    program: str, url: str, cache: Path, host: str = "", pid: int | str = ""
) -> Iterator[subprocess.Popen[str]]:
    """A process that has come to where it stays; it may think that it has another host name or process number."""
    command = [sys.executable, "-c", program, url, str(cache), host, str(pid)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


def dead_process() -> int:
    """The id of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def make_old(folder: Path) -> None:
    """As if nothing in it, and nothing of its lock, had changed for more than a day."""
    for path in (*folder.rglob("*"), folder, folder.with_name(f"{folder.name}.lock")):
        if path.exists():
            os.utime(path, (0, time.time() - OLD_SECONDS - 60))


@pytest.mark.parametrize("host", ["", "another-container"])
@pytest.mark.parametrize("pid", ["", os.getpid()], ids=["own-number", "a-number-that-lives"])
def test_sweeping_removes_what_a_killed_process_left_whatever_its_container(
    empty_store: Store, tmp_path: Path, host: str, pid: int | str
) -> None:
    with running(HOLDS, empty_store.url, tmp_path / "cache", host, pid) as process:
        process.kill()
        process.wait()
    assert leftovers(Path(empty_store.url))
    empty_store.sweep()
    assert leftovers(Path(empty_store.url)) == []


@pytest.mark.parametrize("host", ["", "another-container"])
@pytest.mark.parametrize("pid", ["", dead_process()], ids=["own-number", "a-number-that-is-dead"])
def test_sweeping_keeps_what_a_living_process_holds_whatever_its_container(
    empty_store: Store, tmp_path: Path, host: str, pid: int | str
) -> None:
    with running(HOLDS, empty_store.url, tmp_path / "cache", host, pid):
        held = leftovers(Path(empty_store.url))
        make_old(Path(empty_store.url, STAGING, held[0]))
        empty_store.sweep()
        assert leftovers(Path(empty_store.url)) == held


@pytest.mark.skipif(not hasattr(os, "waitid"), reason="needs waitid")
def test_sweeping_removes_what_processes_left_that_ended_without_being_waited_for(
    empty_store: Store, tmp_path: Path
) -> None:
    with running(HOLDS, empty_store.url, tmp_path / "cache") as process:
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        empty_store.sweep()
        assert leftovers(Path(empty_store.url)) == []


def test_what_a_killed_process_had_fetched_makes_room_in_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    monkeypatch.setenv("HEADRACE_CACHE", str(cache))
    with running(FETCHES, "memory://sweeping", cache, "another-container") as process:
        (copy,) = cache.glob("6b86*-*")
        Store("memory://sweeping").sweep()
        assert copy.stat().st_nlink == 2, "in use"
        process.kill()
        process.wait()
    Store("memory://sweeping").sweep()
    assert copy.stat().st_nlink == 1
    assert list((cache / "work").iterdir()) == []


def test_sweeping_keeps_what_may_be_in_use(empty_store: Store) -> None:
    with empty_store.staging() as live:
        elsewhere = live.parent / "another-machine_1b4e28ba-2fa1_0123456789ab"
        foreign = live.parent / "probe-0123456789ab"
        elsewhere.mkdir()
        for file in (foreign, elsewhere.with_name(f"{elsewhere.name}.lock")):
            file.touch()
        before = leftovers(Path(empty_store.url))
        empty_store.sweep()
        assert leftovers(Path(empty_store.url)) == before
        for folder in (elsewhere, foreign, live):
            make_old(folder)
        empty_store.sweep()
        assert leftovers(Path(empty_store.url)) == sorted([live.name, f"{live.name}.lock", foreign.name])


def test_a_young_file_in_an_old_folder_keeps_it(empty_store: Store) -> None:
    elsewhere = Path(empty_store.url, STAGING, "another-machine_1b4e28ba-2fa1_0123456789ab")
    (elsewhere / "deeper").mkdir(parents=True)
    elsewhere.with_name(f"{elsewhere.name}.lock").touch()
    make_old(elsewhere)
    (elsewhere / "deeper" / "half.bin").touch()
    os.utime(elsewhere / "deeper", (0, 0))
    empty_store.sweep()
    assert elsewhere.exists()


def test_a_folder_that_is_swept_while_it_is_made_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flock, pending = fcntl.flock, [True]

    def late(descriptor: int, how: int) -> None:
        if pending:
            pending.clear()
            sweep(tmp_path)
            assert list(tmp_path.iterdir()) == []
        flock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", late)
    folder = PrivateFolder(tmp_path)
    sweep(tmp_path)
    assert sorted(tmp_path.iterdir()) == [folder.path, folder.path.with_name(f"{folder.path.name}.lock")]
    folder.remove()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_has_lost_its_lock_is_swept_when_it_is_old(tmp_path: Path) -> None:
    folder = PrivateFolder(tmp_path)
    folder.path.with_name(f"{folder.path.name}.lock").unlink()
    sweep(tmp_path)
    assert folder.path.exists()
    os.utime(folder.path, (0, 0))
    sweep(tmp_path)
    assert list(tmp_path.iterdir()) == []
    folder.remove()


def test_where_files_cannot_be_locked_folders_are_made_and_none_is_swept(
    empty_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(descriptor: int, how: int) -> None:
        raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr(fcntl, "flock", refuses)
    with empty_store.staging() as folder:
        make_old(folder)
        empty_store.sweep()
        assert folder.exists()
    assert leftovers(Path(empty_store.url)) == []


def test_a_folder_lives_as_long_as_a_forked_child_that_may_use_it(empty_store: Store, tmp_path: Path) -> None:
    with running(FORKS, empty_store.url, tmp_path / "cache") as process:
        held = leftovers(Path(empty_store.url))
        process.send_signal(signal.SIGKILL)
        process.wait()
        empty_store.sweep()
        assert leftovers(Path(empty_store.url)) == held
        process.communicate()  # ends the child's input, and waits for its end
    empty_store.sweep()
    assert leftovers(Path(empty_store.url)) == []


def test_a_forked_child_that_ends_leaves_its_parents_folder(empty_store: Store, tmp_path: Path) -> None:
    with running(FORKS, empty_store.url, tmp_path / "cache") as process:
        assert process.communicate() == ("0 True\n", None)
    assert leftovers(Path(empty_store.url)) == []


def test_a_forked_child_has_copies_of_its_own(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FORKS_AND_FETCHES, "memory://forking", str(tmp_path / "cache"), "", ""]
    said = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout
    assert said == "True\n0 b'1'\n"
    assert list((tmp_path / "cache" / "work").iterdir()) == []


def test_sweeping_a_store_that_does_not_exist_does_nothing(empty_store: Store) -> None:
    for store in (empty_store, Store("memory://nothing-here")):
        store.sweep()
        assert not store.exists("")


def test_what_ends_well_during_a_sweep_is_no_trouble(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    living, opened = [PrivateFolder(tmp_path)], os.open

    def opened_late(path: Path, *arguments: int, **options: int) -> int:
        if str(path).endswith(".lock") and living:
            living.pop().remove()  # as its own process does, between the sweep's list and its look
        return opened(path, *arguments, **options)

    monkeypatch.setattr(os, "open", opened_late)
    sweep(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("when", ["private", ""])
def test_a_kill_in_the_look_whether_a_store_can_be_written_leaves_nothing(when: str, tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"))
    command = [sys.executable, "-c", DIES_LOOKING, store.url, str(tmp_path / "cache"), when, ""]
    ended = subprocess.run(command, cwd=ROOT)
    assert ended.returncode == (-signal.SIGKILL if when else 0)
    store.sweep()
    assert list((tmp_path / "store" / STAGING).iterdir()) == []


def test_looking_whether_a_store_can_be_written_leaves_nothing_in_it(any_store: Store) -> None:
    check_writable(any_store)
    assert list(any_store.walk()) == []
