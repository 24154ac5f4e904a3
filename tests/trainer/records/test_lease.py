"""One process a run."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests import ROOT
from tests.processes import start_warm, wait_until
from tests.support import final_bytes, small_values, steps_recorded, write_config
from tests.trainer.small_jobs import LONG, Finished
from tests.trainer.test_refusals import message_of
from trainer.common.errors import ArtifactError, Preempted, RunError, StorageError
from trainer.common.stopping import signal_handlers
from trainer.records import lease as leases
from trainer.records.lease import Lease, is_being_removed, is_held
from trainer.records.sealed import read_sealed, write_sealed
from trainer.store.probes import age
from trainer.store.storage import Store

RUN = "runs/one"
LONG_TIME = 1e4
"""Seconds that no test lasts."""

HOLDER = """
import sys, time
from trainer.records.lease import Lease
from trainer.store.storage import Store
with Lease(Store(sys.argv[1]), "runs/one"):
    print("holding", flush=True)
    time.sleep(100)
"""


@pytest.fixture
def holder(atomic_store: Store) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the run."""
    command = [sys.executable, "-c", HOLDER, atomic_store.url]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "holding\n"
        yield process
        process.kill()


def held(store: Store) -> dict[str, Any]:
    found: dict[str, Any] = read_sealed(store, f"{RUN}/lease.json")
    return found


def test_a_run_that_is_held_is_refused_with_who_holds_it_and_since_when(
    atomic_store: Store, holder: subprocess.Popen[str]
) -> None:
    since = held(atomic_store)["since"]
    with (
        pytest.raises(RunError, match=rf"process {holder.pid} on .* since {since[:10]}.*last heartbeat"),
        Lease(atomic_store, RUN),
    ):
        pass
    assert held(atomic_store)["pid"] == holder.pid


def test_a_holder_that_was_killed_is_replaced_at_once(
    atomic_store: Store, holder: subprocess.Popen[str], caplog: pytest.LogCaptureFixture
) -> None:
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    with Lease(atomic_store, RUN):
        assert held(atomic_store)["pid"] == os.getpid()
    assert f"taking over from process {holder.pid}" in caplog.text
    assert atomic_store.names(RUN) == []


def test_a_holder_that_is_not_yet_waited_for_counts_as_gone(atomic_store: Store, holder: subprocess.Popen[str]) -> None:
    holder.send_signal(signal.SIGKILL)
    wait_until(lambda: Path(f"/proc/{holder.pid}/stat").read_text().rpartition(") ")[2][0] == "Z")
    with Lease(atomic_store, RUN):
        assert held(atomic_store)["pid"] == os.getpid()


def test_a_living_holder_that_proc_does_not_show_keeps_its_run(
    atomic_store: Store, holder: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = leases._text
    hidden = f"/proc/{holder.pid}/stat"  # as of another user where /proc is mounted with hidepid
    monkeypatch.setattr(leases, "_text", lambda path: "" if path == hidden else shown(path))
    assert is_held(atomic_store, RUN)
    with pytest.raises(RunError, match=rf"process {holder.pid} on "), Lease(atomic_store, RUN, removing=True):
        pass
    holder.kill()
    holder.wait()
    with Lease(atomic_store, RUN):
        assert held(atomic_store)["pid"] == os.getpid()


def write_foreign_lease(store: Store, host: str, beat: str) -> None:
    """The lease of a process on another machine."""
    other = {"id": "x", "since": "2026-01-01", "host": host, "pid": 1, "machine": "another", "started": "5"}
    write_sealed(store, f"{RUN}/lease.json", {**other, "beat": beat})


def show_life_elsewhere(store: Store, seconds_ago: float = 0.0) -> None:
    """The last sign of life of a process on another machine."""
    beat = (datetime.now(UTC) - timedelta(seconds=seconds_ago)).isoformat(timespec="milliseconds")
    write_foreign_lease(store, "far", beat)


def test_a_holder_on_another_machine_that_was_silent_for_long_is_replaced_at_once(
    atomic_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "LOOK_SECONDS", LONG_TIME)
    monkeypatch.setattr(leases, "STALE_SECONDS", 1.0)
    show_life_elsewhere(atomic_store)
    wait_until(lambda: not is_held(atomic_store, RUN))
    with Lease(atomic_store, RUN):
        assert held(atomic_store)["pid"] == os.getpid()


def test_a_living_holder_whose_clock_is_behind_keeps_its_run(atomic_store: Store) -> None:
    show_life_elsewhere(atomic_store, 120)  # by its own clock; it has just been written
    assert is_held(atomic_store, RUN)
    with pytest.raises(RunError, match="is being written by process 1 on far"), Lease(atomic_store, RUN, removing=True):
        pass


@pytest.mark.deep
def test_a_holder_on_another_machine_that_is_silent_is_waited_for_and_replaced(
    atomic_store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(leases, "STALE_SECONDS", 6.0)
    show_life_elsewhere(atomic_store)
    begun = time.monotonic()
    with Lease(atomic_store, RUN):
        assert time.monotonic() - begun > 5
        assert held(atomic_store)["pid"] == os.getpid()
    assert caplog.text.count("waiting up to 6 s to see whether that process is alive") == 1


def test_a_holder_on_another_machine_that_shows_life_is_not_waited_for(atomic_store: Store) -> None:
    show_life_elsewhere(atomic_store)
    other = threading.Timer(2, show_life_elsewhere, [atomic_store])
    begun = time.monotonic()
    other.start()
    with pytest.raises(RunError, match="process 1 on far"), Lease(atomic_store, RUN):
        pass
    assert time.monotonic() - begun >= 2  # refused for the new sign of life, not for the old one
    assert held(atomic_store)["host"] == "far"


def test_who_waits_for_a_lease_can_be_asked_to_stop(atomic_store: Store) -> None:
    show_life_elsewhere(atomic_store)
    stop = threading.Timer(1, os.kill, [os.getpid(), signal.SIGTERM])
    with pytest.raises(Preempted), signal_handlers():
        stop.start()
        with Lease(atomic_store, RUN):
            pass


def test_the_error_that_ends_a_block_counts_for_more_than_a_lease_that_cannot_be_given_back(
    empty_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*arguments: Any) -> None:
        raise StorageError("the store is away", transient=True)

    with pytest.raises(RunError, match="the first"), Lease(empty_store, RUN):
        monkeypatch.setattr(Store, "delete", away)
        raise RunError("the first")


def test_nobody_waits_for_a_lease_to_remove_a_run(atomic_store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "LOOK_SECONDS", LONG_TIME)
    show_life_elsewhere(atomic_store)
    with pytest.raises(RunError, match="process 1 on far"), Lease(atomic_store, RUN, removing=True):
        pass


def test_a_process_id_that_was_given_to_another_process_does_not_hold(atomic_store: Store) -> None:
    with Lease(atomic_store, RUN):
        mine = held(atomic_store)
    write_sealed(atomic_store, f"{RUN}/lease.json", {**mine, "started": "1"})
    with Lease(atomic_store, RUN):
        assert held(atomic_store)["id"] != mine["id"]


def test_a_lease_shows_signs_of_life_and_notices_that_it_was_taken(
    atomic_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "BEAT_SECONDS", 0.3)
    with Lease(atomic_store, RUN) as lease:
        first = held(atomic_store)["beat"]
        wait_until(lambda: held(atomic_store)["beat"] > first)
        lease.check()
        write_sealed(atomic_store, f"{RUN}/lease.json", {**held(atomic_store), "id": "another"})

        def refused() -> bool:
            try:
                lease.check()
            except RunError as error:
                return "taken over by another process" in str(error)
            return False

        wait_until(refused)
        time.sleep(3 * leases.BEAT_SECONDS)  # so long that it would look again
        assert refused()
    assert held(atomic_store)["id"] == "another", "what is another's stays, and is not taken back"


def test_a_lease_that_was_taken_unnoticed_is_not_removed_at_the_end(atomic_store: Store) -> None:
    with Lease(atomic_store, RUN):
        write_sealed(atomic_store, f"{RUN}/lease.json", {**held(atomic_store), "id": "another"})
    assert held(atomic_store)["id"] == "another"


def test_a_removal_whose_process_was_killed_does_not_count_as_under_way(atomic_store: Store) -> None:
    with Lease(atomic_store, RUN, removing=True):
        assert is_being_removed(atomic_store, RUN)
        mine = held(atomic_store)
    write_sealed(atomic_store, f"{RUN}/lease.json", {**mine, "started": "1"})
    assert not is_being_removed(atomic_store, RUN)


@pytest.mark.deep
@pytest.mark.slow
def test_of_two_starts_of_one_run_one_trains_and_the_other_says_why_not(
    raw: Path, stocked: Path, finished: Finished, tmp_path: Path
) -> None:
    config = write_config(tmp_path / "job.yaml", small_values(raw, stocked, **LONG))
    first = start_warm(tmp_path / "first", "trainer.__main__", config)
    wait_until(lambda: steps_recorded(stocked) > 2)
    first.send(signal.SIGSTOP)
    message = message_of(start_warm(tmp_path / "second", "trainer.__main__", config).wait())
    first.send(signal.SIGCONT)
    assert f"is being written by process {first.pid} on" in message
    assert first.wait().status == 0
    assert final_bytes(stocked) == final_bytes(finished.store)
    assert not list(stocked.glob("runs/*/lease.json*"))


@pytest.mark.deep
def test_a_race_for_a_dead_lease_has_one_winner(atomic_store: Store) -> None:
    write_foreign_lease(atomic_store, "far", "2026-01-01T00:00:00+00:00")
    command = [sys.executable, "-c", HOLDER, atomic_store.url]
    racers = [subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(4)]
    try:
        wait_until(lambda: sum(racer.poll() is not None for racer in racers) == 3)
        time.sleep(0.2)
        (winner,) = [racer for racer in racers if racer.poll() is None]
        assert held(atomic_store)["pid"] == winner.pid
    finally:
        for racer in racers:
            racer.kill()
            racer.communicate()


@pytest.mark.parametrize("content", [b"", b"{half", b"{}"])
def test_of_a_damaged_lease_the_run_counts_as_held_until_nobody_can_be_alive(
    atomic_store: Store, content: bytes
) -> None:
    atomic_store.write_bytes(f"{RUN}/lease.json", content)
    with (
        pytest.raises(
            RunError,
            match=r"lease\.json is damaged, so the process that holds .* unknown.*wait two minutes, and delete it",
        ),
        Lease(atomic_store, RUN, removing=True),
    ):
        pass
    assert is_held(atomic_store, RUN)
    with pytest.raises(ArtifactError, match=r"lease\.json is damaged"):
        is_being_removed(atomic_store, RUN)


@pytest.mark.parametrize("other", ["{half", None])
def test_a_damaged_lease_that_no_process_renews_is_taken_over(
    empty_store: Store, other: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    with Lease(empty_store, "runs/two"):
        lease = empty_store.read_bytes("runs/two/lease.json")  # of another run
    empty_store.write_bytes(f"{RUN}/lease.json", other.encode() if other else lease)
    long_ago = time.time() - leases.STALE_SECONDS - 1
    os.utime(empty_store.fetch(f"{RUN}/lease.json"), (long_ago, long_ago))
    assert not is_held(empty_store, RUN)
    assert not is_being_removed(empty_store, RUN)
    with Lease(empty_store, RUN):
        assert held(empty_store)["pid"] == os.getpid()
    assert "taking over from process (unknown)" in caplog.text
    assert not empty_store.exists(f"{RUN}/lease.json")


def test_a_living_holder_writes_its_damaged_lease_anew(
    atomic_store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(leases, "BEAT_SECONDS", 0.3)
    with Lease(atomic_store, RUN) as lease:
        mine = held(atomic_store)["id"]
        damaged = atomic_store.read_bytes(f"{RUN}/lease.json").replace(b'"beat": "2', b'"beat": "3')
        atomic_store.write_bytes(f"{RUN}/lease.json", damaged)
        wait_until(lambda: atomic_store.read_bytes(f"{RUN}/lease.json") != damaged)
        assert held(atomic_store)["id"] == mine
        lease.check()
        wait_until(lambda: "lease.json was damaged and has been rewritten" in caplog.text)
        atomic_store.write_bytes(f"{RUN}/lease.json", b"")
    assert not atomic_store.exists(f"{RUN}/lease.json")


def test_a_holder_that_was_silent_for_long_does_not_write_a_damaged_lease_anew(atomic_store: Store) -> None:
    with Lease(atomic_store, RUN) as lease:
        atomic_store.write_bytes(f"{RUN}/lease.json", b"{half")
        lease._shown -= leases.STALE_SECONDS  # as if it had stood still: another may have taken the run since
        with pytest.raises(RunError, match="no heartbeat for too long"):
            lease.check()
    assert atomic_store.read_bytes(f"{RUN}/lease.json") == b"{half"


def leave_from_the_future(store: Store, seconds_ago: float) -> None:
    """A lease of another machine, whose clock is an hour ahead, that was written so long ago."""
    beat = (datetime.now(UTC) + timedelta(hours=1)).isoformat(timespec="seconds")
    write_foreign_lease(store, "ahead", beat)
    assert store.local is not None
    then = time.time() - seconds_ago
    os.utime(store.local / RUN / "lease.json", (then, then))


def test_a_lease_from_the_future_counts_by_the_stores_clock(empty_store: Store) -> None:
    leave_from_the_future(empty_store, 30)
    assert is_held(empty_store, RUN)
    with (
        pytest.raises(RunError, match="is being written by process 1 on ahead"),
        Lease(empty_store, RUN, removing=True),
    ):
        pass
    leave_from_the_future(empty_store, 120)
    assert not is_held(empty_store, RUN)
    with Lease(empty_store, RUN):
        assert held(empty_store)["id"] != "x"


def test_a_lease_that_nobody_renews_is_taken_over_although_the_stores_clock_was_set_back(
    empty_store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(leases, "STALE_SECONDS", 2.0)
    monkeypatch.setattr(leases, "LOOK_SECONDS", 0.1)
    leave_from_the_future(empty_store, -3600)
    begun = time.monotonic()
    with Lease(empty_store, RUN):
        assert 2 <= time.monotonic() - begun < 60
        assert held(empty_store)["pid"] == os.getpid()
    assert caplog.text.count("waiting up to 2 s to see whether that process is alive") == 1
    assert "taking over from process 1 on ahead" in caplog.text


def test_the_age_of_a_file_is_told_by_the_store_and_nothing_is_kept_for_it(any_store: Store) -> None:
    assert age(any_store, "a") is None
    any_store.write_bytes("a", b"1")
    seconds = age(any_store, "a")
    assert seconds is not None and abs(seconds) < 60
    assert [file.key for file in any_store.walk()] == ["a"]
