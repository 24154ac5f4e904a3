"""One process a run: a lease with a heartbeat in the store, with or without an orchestrator.

    runs/X/lease.json    who holds the run, since when, and the last sign of life

A lease whose holder is dead (same machine: its process is gone; same cluster: Ray says so; else: no sign of life for
`STALE_SECONDS`) is taken over. The clocks of two machines may differ: a sign of life that is old, or from the future,
is as old as its file is by the store's clock. Of a damaged lease it is not known who holds it. A living holder writes
it anew with its next sign of life, so one that stays as it is for `STALE_SECONDS` is of no living process. So whoever
finds a lease whose holder cannot be seen waits: until it changes, and is refused then, or until it is that old, and
takes it over.

And holds: what stays in a store for a time, because somebody is about to use it, or waits for a person's word on it.

    pins/holds/runs/X@20260501T120000-0123abcd    …    one small sealed file for each hold

Its name says until when it counts, in UTC.

Removal says that it is under way before it looks for the last time at what is held and pinned: an artifact has no
manifest any more, and the lease of a run says so. Whoever holds or pins something writes that first, and then looks
whether it is being removed. So of the two at least one sees the other.
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
from trainer.store.storage import Store

log = logging.getLogger(__name__)

LEASE = "lease.json"
BEAT_SECONDS, STALE_SECONDS = 10.0, 90.0
LOOK_SECONDS = 1.0
"""Between two looks at a lease that may be a dead process's."""
AHEAD_SECONDS = 5.0
"""By how much clocks may differ that count as the same."""


class Lease:
    """The right to write to a run, for the length of a block. Raises `RunError` on entry if a living process holds it.

    `removing` is there for others to see: it is held to remove the run, and then nothing is waited for.
    """

    def __init__(self, store: Store, run: str, removing: bool = False) -> None:
        self._store, self._key, self._path = store, f"{run}/{LEASE}", store.path(run)
        self._mine: dict[str, Any] = {"id": uuid.uuid4().hex, "since": _now(), **_identity()}
        self._removing = removing
        if removing:
            self._mine["removing"] = True
        self._ended, self._lost, self._written = threading.Event(), False, b""
        self._watched: bytes | None = None
        # By the clock on the wall: the monotonic one stands still while a machine sleeps.
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
            # The error that ends the block tells more.
            log.warning("the lease stays, and counts until it is old: %s", failure)

    def _give_back(self) -> None:
        raw = self._store.find_bytes(self._key)
        if raw is not None and not self._lost and (self._meaning(raw) or self._mine)["id"] == self._mine["id"]:
            self._store.delete(self._key)

    def _create(self) -> bool:
        self._written = self._encoded()
        return self._store.create(self._key, self._written)

    def _take_over(self) -> bool:
        """Put this lease in the place of a dead one; returns False if that has changed, or is gone."""
        raw = self._store.find_bytes(self._key)
        if raw is None:
            return False
        held = self._meaning(raw)
        if held is None:
            held = {"pid": "(unknown)", "host": "a machine that its damaged lease does not tell"}
            problem = (
                f"{self._path}/{LEASE} is damaged, so it is not known who writes to the run; {remedy_of(self._key)}"
            )
            if _is_young(self._store, self._key):
                return self._watch(raw, problem)
        elif held["id"] == self._mine["id"]:
            return True  # a remote store's answer to its creation was lost, and the request repeated
        elif _is_alive(self._store, self._key, held):
            problem = (
                f"{self._path} is being written by process {held['pid']} on {held['host']} since {held['since']} "
                f"(last sign of life {held['beat']}); wait for it, stop it, or choose another name for `run`"
            )
            if is_gone(held.get("group")):
                return self._wait()  # Ray ends it, whatever it still writes
            if _is_seen(held):
                raise RunError(problem)
            return self._watch(raw, problem)
        self._written = self._encoded()
        taken = self._store.swap(self._key, raw, self._written)
        if taken:
            log.warning("%s: taking over from process %s on %s, which is gone", self._path, held["pid"], held["host"])
        return taken

    def _watch(self, raw: bytes, problem: str) -> bool:
        """Wait a moment for a sign of life in a lease. Raises `RunError` if there was one, or if there is no time to
        wait.
        """
        if self._removing or self._watched not in (None, raw):
            raise RunError(problem)
        if self._watched is None:
            log.warning("%s: whether that process lives is seen within %g s", problem, STALE_SECONDS)
        self._watched = raw
        return self._wait()

    def _wait(self) -> bool:
        wait(LOOK_SECONDS)
        check_stop()
        return False

    def check(self) -> None:
        """Raise `RunError` if another process has taken the run over, as it may from one that was suspended for long.

        Raises `StorageError` if that cannot be found out.
        """
        if time.time() - self._shown > 2 * BEAT_SECONDS:
            self._show_life()
        if self._lost:
            raise RunError(
                f"{self._path} was taken over by another process: this one was silent for too long, and ends"
            )

    def _keep(self) -> None:
        silent = False
        while not self._ended.wait(BEAT_SECONDS):
            try:
                self._show_life()
                silent = False
                if self._lost:
                    return
            except (
                Exception
            ) as error:  # a store that fails for a moment; others wait STALE_SECONDS before they take over
                if not silent:
                    log.warning("%s: no sign of life could be written: %s", self._path, error)
                silent = True

    def _show_life(self) -> None:
        """Write a new sign of life in the place of the last one, unless another process has put its lease there."""
        with self._turn:
            if self._lost:
                return  # it is not taken back
            written = self._encoded()
            if self._store.swap(self._key, self._written, written):
                self._written = written
            else:
                # After a request that was repeated, it may be the one just written.
                raw = self._store.find_bytes(self._key)
                held = None if raw is None else self._meaning(raw)
                known = time.time() - self._shown < STALE_SECONDS  # else another process may have taken it since
                if raw is not None and held is None and known and self._store.swap(self._key, raw, written):
                    log.warning("%s was damaged: written anew", self._store.path(self._key))
                    held, raw = self._mine, written
                self._lost = held is None or held["id"] != self._mine["id"]
                self._written = raw or b""
            self._shown = time.time()

    def _encoded(self) -> bytes:
        return sealed_bytes(self._key, {**self._mine, "beat": _now()}, indent=None)

    def _meaning(self, raw: bytes) -> dict[str, Any] | None:
        """What a lease says; None if it is damaged."""
        try:
            return open_sealed(self._store, self._key, raw)
        except ArtifactError:
            return None


def is_held(store: Store, run: str) -> bool:
    """Whether a living process holds the run, or, if its lease is damaged, may hold it."""
    try:
        held = read_sealed(store, f"{run}/{LEASE}")
    except ArtifactError as error:
        log.warning("%s", error)
        return _is_young(store, f"{run}/{LEASE}")
    return held is not None and _is_alive(store, f"{run}/{LEASE}", held)


def is_being_removed(store: Store, key: str) -> bool:
    """Whether a living process holds a run to remove it; whether an artifact is being removed, or is gone.

    Raises `ArtifactError` if that cannot be told for now.
    """
    if not key.startswith("runs/"):
        return not store.exists(f"{key}/{MANIFEST}")
    try:
        held = read_sealed(store, f"{key}/{LEASE}")
    except ArtifactError:
        if _is_young(store, f"{key}/{LEASE}"):
            raise
        return False
    return held is not None and held.get("removing", False) and _is_alive(store, f"{key}/{LEASE}", held)


def clear_dead_lease(store: Store, run: str) -> None:
    """Remove the lease that a process left behind which was killed after its work was done."""
    if store.exists(f"{run}/{LEASE}") and not is_held(store, run):
        store.delete(f"{run}/{LEASE}")


def _identity() -> dict[str, Any]:
    """What tells this process from any other, on any machine: process ids are counted anew in every namespace."""
    group = own_group()
    return {
        **({"group": group} if group else {}),
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "machine": f"{_text('/proc/sys/kernel/random/boot_id')} {_link('/proc/self/ns/pid')}",
        "started": _started(os.getpid()),
    }


def _is_alive(store: Store, key: str, held: dict[str, Any]) -> bool:
    if _is_seen(held):
        return bool(_started(held["pid"]) == held["started"])
    if is_gone(held.get("group")):
        return False
    silent = time.time() - datetime.fromisoformat(held["beat"]).timestamp()
    return -AHEAD_SECONDS <= silent < STALE_SECONDS or _is_young(store, key)


def _is_seen(held: dict[str, Any]) -> bool:
    """Whether a holder would be seen from here if it lived."""
    mine = _identity()
    return bool(held["machine"] == mine["machine"] and mine["started"])


def _is_young(store: Store, key: str) -> bool:
    """Whether a lease was written so lately, by the store's own clock, that its holder may live."""
    age = store.age(key)
    return age is not None and age < STALE_SECONDS


def _started(pid: int) -> str:
    """When a process started, in ticks since boot; empty if there is none, or it only waits to be noticed as ended."""
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
"""For what is done at once; for a run that waits for its turn; and for a run that waits so long for a person's word,
with a day more for what follows."""

SPENT = timedelta(hours=12)
"""The part of a long hold that may have passed before the same is held again."""


class Hold(NamedTuple):
    """A hold: the key of its file, what is held, and until when."""

    file: str
    key: str
    until: datetime


def held(store: Store) -> set[str]:
    """The keys of all that is held now, as the names of the holds say."""
    return {hold.key for hold in _all(store) if hold.until >= datetime.now(UTC)}


@contextmanager
def holding(store: Store, run: str, lasting: timedelta = SHORT) -> Iterator[None]:
    """Hold a run for the length of a block, or, if this process is killed, for so long; what is in the block looks at
    it anew.

    Raises `ArtifactError` if the run is being removed.
    """
    name = _hold(store, run, lasting)
    try:
        if is_being_removed(store, run):
            raise ArtifactError(f"{store.path(run)} is just being removed")
        yield
    finally:
        store.delete(name)


def hold_reused(store: Store, key: str) -> bool:
    """Hold an artifact that is used again, until a run says so; returns whether it is still there.

    However young it is: who removes garbage chooses from which age on. What is held for most of that time already costs
    a listing. A store that cannot be written is only read. Raises `StorageError` if it cannot be for now.
    """
    least = datetime.now(UTC) + LONG - SPENT
    try:
        if not any(hold.key == key and hold.until > least for hold in _of(store, key.partition("/")[0])):
            _hold(store, key, LONG)
    except StorageError as error:
        if error.transient:
            raise
        log.info("%s may be removed before a run says that it reads it: %s", store.path(key), error)
        return True
    return not is_being_removed(store, key)


def forget_ended(store: Store) -> None:
    """Delete the holds that do not count any more."""
    for hold in _all(store):
        if hold.until < datetime.now(UTC):
            store.delete(hold.file)


def _hold(store: Store, key: str, lasting: timedelta) -> str:
    name = f"{HOLDS}/{key}@{datetime.now(UTC) + lasting:{TIME}}-{uuid.uuid4().hex[:8]}"
    write_sealed(store, name, {"held": key})
    return name


def _all(store: Store) -> Iterator[Hold]:
    """All holds. Who removes something checks that each is what was written under its name (registry/references.py)."""
    return chain.from_iterable(_of(store, folder) for folder in store.names(HOLDS))


def _of(store: Store, folder: str) -> Iterator[Hold]:
    """The holds of what is in a folder of the store."""
    for file in (f"{HOLDS}/{folder}/{name}" for name in store.names(f"{HOLDS}/{folder}")):
        key, _, until = file.removeprefix(f"{HOLDS}/").rpartition("@")
        with suppress(ValueError):  # its name is damaged
            yield Hold(file, key, datetime.strptime(until[:15], TIME).replace(tzinfo=UTC))
