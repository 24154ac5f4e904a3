"""Leases: a heartbeat file in the store that allows one process per run, with or without an orchestrator.

    runs/X/lease.json    the process that holds the run, since when, and its last heartbeat

A process takes over a lease whose holder is dead. On the same machine the holder's process has ended; in the same
cluster Ray reports its end; otherwise there was no heartbeat for `STALE_SECONDS`. Clocks of machines may differ, so for
an old or future heartbeat the file's age by the store's clock counts. A damaged lease does not show its holder, but a
living holder rewrites it at its next heartbeat. So a process that cannot check a lease's holder waits: if the lease
changes, the run is refused; if it stays unchanged for `STALE_SECONDS`, the process takes it over.

Holds protect artifacts from removal for a limited time, because a job is about to use them or waits for approval.

    pins/holds/runs/X@20260501T120000-0123abcd    …    one small sealed file for each hold

The name contains the UTC time at which the hold ends.

A removal first marks the artifact (it deletes its manifest, or marks the run's lease) and then checks holds and pins. A
process that holds or pins an artifact first writes the hold or pin and then checks for these marks. So at least one of
the two detects the other.
"""

import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, Self

from trainer.common.errors import ArtifactError, RunError, StorageError
from trainer.common.stopping import check_stop, wait
from trainer.engines.executors import is_gone, own_group
from trainer.records.sealed import open_sealed, read_sealed, sealed_bytes, write_sealed
from trainer.records.shapes import remedy_of
from trainer.store.manifest import MANIFEST
from trainer.store.probes import age
from trainer.store.storage import Store

log = logging.getLogger(__name__)

LEASE = "lease.json"
BEAT_SECONDS, STALE_SECONDS = 10.0, 90.0
LOOK_SECONDS = 1.0
"""Interval between checks of a lease whose holder may be dead."""
AHEAD_SECONDS = 5.0
"""Maximum difference between clocks that are treated as equal."""


class Lease:
    """The exclusive right to write to a run during a block. Raises `RunError` on entry if a living process holds it.

    With `removing`, the lease is marked as held to remove the run, and entry does not wait.
    """

    def __init__(self, store: Store, run: str, removing: bool = False) -> None:
        self._store, self._key, self._path = store, f"{run}/{LEASE}", store.path(run)
        self._mine: dict[str, Any] = {"id": uuid.uuid4().hex, "since": _now(), **_identity()}
        self._removing = removing
        if removing:
            self._mine["removing"] = True
        self._ended, self._lost, self._written = threading.Event(), False, b""
        self._watched: bytes | None = None
        self._watching_since = 0.0  # seconds of the monotonic clock
        # Wall-clock time: the monotonic clock stops while a machine sleeps.
        self._turn, self._shown = threading.Lock(), time.time()
        self._beat = threading.Thread(target=self._keep, name="lease", daemon=True)

    def __enter__(self) -> Self:
        while not (self._create() or self._take_over()):
            pass
        self._beat.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._ended.set()
        self._beat.join()
        try:
            self._give_back()
        except StorageError as failure:
            if error is None:
                raise
            # The error that ends the block is more important.
            log.warning("the lease could not be removed and remains until it expires: %s", failure)

    def _give_back(self) -> None:
        raw = self._store.find_bytes(self._key)
        if raw is not None and not self._lost and (self._meaning(raw) or self._mine)["id"] == self._mine["id"]:
            self._store.delete(self._key)

    def _create(self) -> bool:
        self._written = self._encoded()
        return self._store.create(self._key, self._written)

    def _take_over(self) -> bool:
        """Replace a dead process's lease; return False if the caller must try again."""
        raw = self._store.find_bytes(self._key)
        if raw is None:
            return False
        lease = self._meaning(raw)
        if lease is None:
            lease = {"pid": "(unknown)", "host": "(unknown)"}
            problem = (
                f"{self._path}/{LEASE} is damaged, so the process that holds the run is unknown; {remedy_of(self._key)}"
            )
            if _is_young(self._store, self._key) and not self._stayed_silent(raw):
                return self._watch(raw, problem)
        elif lease["id"] == self._mine["id"]:
            return True  # the store's answer to its creation was lost, and the request was repeated
        elif _is_alive(self._store, self._key, lease) and not self._stayed_silent(raw):
            problem = (
                f"{self._path} is being written by process {lease['pid']} on {lease['host']} since {lease['since']} "
                f"(last heartbeat {lease['beat']}); wait for it, stop it, or set another name in `run`"
            )
            if is_gone(lease.get("group")):
                return self._wait()  # Ray is ending it, even if it still writes
            if _is_seen(lease):
                raise RunError(problem)
            return self._watch(raw, problem)
        self._written = self._encoded()
        taken = self._store.swap(self._key, raw, self._written)
        if taken:
            log.warning("%s: taking over from process %s on %s, which ended", self._path, lease["pid"], lease["host"])
        return taken

    def _watch(self, raw: bytes, problem: str) -> bool:
        """Wait briefly for a heartbeat in a lease; raise `RunError` if there was one, or if `removing`."""
        if self._removing or self._watched not in (None, raw):
            raise RunError(problem)
        if self._watched is None:
            log.warning("%s; waiting up to %g s to see whether that process is alive", problem, STALE_SECONDS)
            self._watching_since = time.monotonic()
        self._watched = raw
        return self._wait()

    def _stayed_silent(self, raw: bytes) -> bool:
        """Whether a lease has not changed while this process watched it for `STALE_SECONDS`: then its holder is dead,
        even if the store's clock was set back and the file seems to be of the future.
        """
        return raw == self._watched and time.monotonic() - self._watching_since >= STALE_SECONDS

    def _wait(self) -> bool:
        wait(LOOK_SECONDS)
        check_stop()
        return False

    def check(self) -> None:
        """Raise `RunError` if another process has taken over the run, for example while this one was suspended.

        Raises `StorageError` if the lease cannot be read.
        """
        if time.time() - self._shown > 2 * BEAT_SECONDS:
            self._show_life()
        if self._lost:
            raise RunError(
                f"{self._path} was taken over by another process, because this one wrote no heartbeat for too long; "
                "this one ends"
            )

    def _keep(self) -> None:
        silent = False
        while not self._ended.wait(BEAT_SECONDS):
            try:
                self._show_life()
                silent = False
                if self._lost:
                    return
            except Exception as error:  # the store may fail briefly; others wait STALE_SECONDS before they take over
                if not silent:
                    log.warning("%s: cannot write a heartbeat: %s", self._path, error)
                silent = True

    def _show_life(self) -> None:
        """Write a new heartbeat, unless another process has replaced the lease."""
        with self._turn:
            if self._lost:
                return  # a lost lease is never taken back
            written = self._encoded()
            if self._store.swap(self._key, self._written, written):
                self._written = written
            else:
                # If the request was repeated, the file may already contain what was just written.
                raw = self._store.find_bytes(self._key)
                lease = None if raw is None else self._meaning(raw)
                known = time.time() - self._shown < STALE_SECONDS  # otherwise another process may have taken it over
                if raw is not None and lease is None and known and self._store.swap(self._key, raw, written):
                    log.warning("%s was damaged and has been rewritten", self._store.path(self._key))
                    lease, raw = self._mine, written
                self._lost = lease is None or lease["id"] != self._mine["id"]
                self._written = raw or b""
            self._shown = time.time()

    def _encoded(self) -> bytes:
        return sealed_bytes(self._key, {**self._mine, "beat": _now()}, indent=None)

    def _meaning(self, raw: bytes) -> dict[str, Any] | None:
        """The content of a lease, or None if it is damaged."""
        try:
            return open_sealed(self._store, self._key, raw)
        except ArtifactError:
            return None


def is_held(store: Store, run: str) -> bool:
    """Whether a living process holds the run, or may hold it, if its lease is damaged."""
    try:
        lease = read_sealed(store, f"{run}/{LEASE}")
    except ArtifactError as error:
        log.warning("%s", error)
        return _is_young(store, f"{run}/{LEASE}")
    return lease is not None and _is_alive(store, f"{run}/{LEASE}", lease)


def is_being_removed(store: Store, key: str) -> bool:
    """Whether a living process is removing a run, or an artifact is being removed or is gone.

    Raises `ArtifactError` if this is temporarily unknown.
    """
    if not key.startswith("runs/"):
        return not store.exists(f"{key}/{MANIFEST}")
    try:
        lease = read_sealed(store, f"{key}/{LEASE}")
    except ArtifactError:
        if _is_young(store, f"{key}/{LEASE}"):
            raise
        return False
    return lease is not None and lease.get("removing", False) and _is_alive(store, f"{key}/{LEASE}", lease)


def clear_dead_lease(store: Store, run: str) -> None:
    """Remove the lease of a process that was killed after it finished its work."""
    if store.exists(f"{run}/{LEASE}") and not is_held(store, run):
        store.delete(f"{run}/{LEASE}")


def _identity() -> dict[str, Any]:
    """Values that identify this process among all machines; process ids repeat in every namespace."""
    group = own_group()
    return {
        **({"group": group} if group else {}),
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "machine": f"{_text('/proc/sys/kernel/random/boot_id')} {_link('/proc/self/ns/pid')}",
        "started": _started(os.getpid()),
    }


def _is_alive(store: Store, key: str, lease: dict[str, Any]) -> bool:
    if _is_seen(lease):
        return bool(_started(lease["pid"]) == lease["started"])
    if is_gone(lease.get("group")):
        return False
    silent = time.time() - datetime.fromisoformat(lease["beat"]).timestamp()
    return -AHEAD_SECONDS <= silent < STALE_SECONDS or _is_young(store, key)


def _is_seen(lease: dict[str, Any]) -> bool:
    """Whether this process can check if the holder is alive."""
    mine = _identity()
    return bool(lease["machine"] == mine["machine"] and mine["started"]) and not _is_hidden(lease["pid"])


def _is_hidden(pid: int) -> bool:
    """Whether a process exists that /proc does not show: with the option hidepid, it shows only a user's own."""
    if _text(f"/proc/{pid}/stat"):
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # that of another user
        pass
    return True


def _is_young(store: Store, key: str) -> bool:
    """Whether a lease was written so recently, by the store's clock, that its holder may be alive."""
    seconds = age(store, key)
    return seconds is not None and seconds < STALE_SECONDS


def _started(pid: int) -> str:
    """Start time of a process in ticks since boot; empty if it does not exist or is a zombie."""
    fields = _text(f"/proc/{pid}/stat").rpartition(") ")[2].split()
    return fields[19] if len(fields) > 19 and fields[0] not in "ZX" else ""


def _text(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


HOLDS = "pins/holds"
TIME = "%Y%m%dT%H%M%S"
SHORT, LONG, LONGEST = timedelta(hours=1), timedelta(days=7), timedelta(days=8)
"""Durations of holds: for immediate work, for a queued run, and for a run that waits for approval, plus one day."""

SPENT = timedelta(hours=12)
"""A long hold is renewed after this time."""


class Hold(NamedTuple):
    """A hold: the key of its file, the held key, and its end."""

    file: str
    key: str
    until: datetime


def held(store: Store) -> set[str]:
    """The keys that are held now, according to the names of the holds."""
    return {hold.key for hold in _all(store) if hold.until >= datetime.now(UTC)}


@contextmanager
def holding(store: Store, run: str, lasting: timedelta = SHORT) -> Iterator[None]:
    """Hold a run during a block, or for the time `lasting` if this process is killed; the block must read it again.

    Raises `ArtifactError` if the run is being removed.
    """
    name = _hold(store, run, lasting)
    try:
        if is_being_removed(store, run):
            raise ArtifactError(f"{store.path(run)} is being removed")
        yield
    finally:
        try:
            store.delete(name)
        except StorageError as error:  # what the block did counts
            log.warning(
                "a hold of %s could not be deleted, so gc keeps it until the hold ends by itself: %s", run, error
            )


def hold_reused(store: Store, key: str) -> bool:
    """Hold an existing artifact until a run refers to it; return whether it still exists.

    The artifact's age is ignored, because the user of garbage collection chooses the minimum age. An existing hold is
    kept if it lasts long enough. In a read-only store nothing is held. Raises `StorageError` for transient errors.
    """
    least = datetime.now(UTC) + LONG - SPENT
    try:
        if not any(hold.key == key and hold.until > least for hold in _of(store, key.partition("/")[0])):
            _hold(store, key, LONG)
    except StorageError as error:
        if error.transient:
            raise
        log.info("%s cannot be held and may be removed before a run refers to it: %s", store.path(key), error)
        return True
    return not is_being_removed(store, key)


def forget_ended(store: Store) -> None:
    """Delete the holds that have ended."""
    for hold in _all(store):
        if hold.until < datetime.now(UTC):
            store.delete(hold.file)


def _hold(store: Store, key: str, lasting: timedelta) -> str:
    name = f"{HOLDS}/{key}@{datetime.now(UTC) + lasting:{TIME}}-{uuid.uuid4().hex[:8]}"
    write_sealed(store, name, {"held": key})
    return name


def _all(store: Store) -> Iterator[Hold]:
    """All holds. Before a removal, registry/references.py checks that each file matches its name."""
    return chain.from_iterable(_of(store, folder) for folder in store.names(HOLDS))


def _of(store: Store, folder: str) -> Iterator[Hold]:
    """The holds of artifacts in a folder of the store."""
    for file in (f"{HOLDS}/{folder}/{name}" for name in store.names(f"{HOLDS}/{folder}")):
        key, _, until = file.removeprefix(f"{HOLDS}/").rpartition("@")
        with suppress(ValueError):  # an invalid name
            yield Hold(file, key, datetime.strptime(until[:15], TIME).replace(tzinfo=UTC))
