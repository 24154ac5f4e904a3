"""One process a run: a lease with a heartbeat in the store, with or without an orchestrator.

    runs/X/lease.json    who holds the run, since when, and the last sign of life

A lease whose holder is dead (same machine: its process is gone; else: no sign of life for `STALE_SECONDS`) is taken over.
"""

import json
import logging
import os
import socket
import threading
import time
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from trainer.errors import RunError
from trainer.storage import Store

log = logging.getLogger(__name__)

LEASE = "lease.json"
BEAT_SECONDS, STALE_SECONDS = 10.0, 90.0


class Lease:
    """The right to write to a run, for the length of a block. Raises `RunError` on entry if another process holds it.

    `removing` is there for others to see: it is held to remove the run.
    """

    def __init__(self, store: Store, run: str, removing: bool = False) -> None:
        self._store, self._key, self._path = store, f"{run}/{LEASE}", store.path(run)
        self._mine: dict[str, Any] = {"id": uuid.uuid4().hex, "since": _now(), **_identity()}
        if removing:
            self._mine["removing"] = True
        self._ended, self._lost, self._written = threading.Event(), False, b""
        # By the clock on the wall: the monotonic one stands still while a machine sleeps.
        self._turn, self._shown = threading.Lock(), time.time()
        self._beat = threading.Thread(target=self._keep, name="lease", daemon=True)

    def __enter__(self) -> Self:
        while not (self._create() or self._take_over()):
            pass
        self._beat.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._beat.join()
        held = self._read()
        if held is not None and _meaning(held)["id"] == self._mine["id"]:
            self._store.delete(self._key)

    def _create(self) -> bool:
        self._written = self._encoded()
        return self._store.create(self._key, self._written)

    def _take_over(self) -> bool:
        """Put this lease in the place of a dead one; returns False if that has changed, or is gone."""
        raw = self._read()
        if raw is None:
            return False
        held = _meaning(raw)
        if held["id"] == self._mine["id"]:
            return True  # a remote store's answer to its creation was lost, and the request repeated
        if _is_alive(held):
            raise RunError(
                f"{self._path} is being written by process {held['pid']} on {held['host']} since {held['since']} "
                f"(last sign of life {held['beat']}); wait for it, stop it, or choose another name for `run`"
            )
        self._written = self._encoded()
        taken = self._store.swap(self._key, raw, self._written)
        if taken:
            log.warning("%s: taking over from process %s on %s, which is gone", self._path, held["pid"], held["host"])
        return taken

    def check(self) -> None:
        """Raise `RunError` if another process has taken the run over, as it may from one that was suspended for long.

        Raises `StorageError` if that cannot be found out.
        """
        if time.time() - self._shown > 2 * BEAT_SECONDS:
            self._show_life()
        if self._lost:
            raise RunError(f"{self._path} was taken over by another process: this one was silent for too long, and ends")

    def _keep(self) -> None:
        while not self._ended.wait(BEAT_SECONDS):
            try:
                self._show_life()
                if self._lost:
                    return
            except Exception as error:  # a store that fails for a moment; others wait STALE_SECONDS before they take over
                log.warning("%s: no sign of life could be written: %s", self._path, error)

    def _show_life(self) -> None:
        """Write a new sign of life in the place of the last one, unless another process has put its lease there."""
        with self._turn:
            written = self._encoded()
            if self._store.swap(self._key, self._written, written):
                self._written = written
            else:
                raw = self._read()  # after a request that was repeated, it may be the one just written
                self._lost = raw is None or _meaning(raw)["id"] != self._mine["id"]
                self._written = raw or b""
            self._shown = time.time()

    def _read(self) -> bytes | None:
        try:
            return self._store.read_bytes(self._key)
        except FileNotFoundError:
            return None

    def _encoded(self) -> bytes:
        return json.dumps({**self._mine, "beat": _now()}, indent=2).encode()


def _meaning(raw: bytes) -> dict[str, Any]:
    held: dict[str, Any] = json.loads(raw)
    return held


def is_held(store: Store, run: str) -> bool:
    """Whether a living process holds the run."""
    held = store.read_json(f"{run}/{LEASE}")
    return held is not None and _is_alive(held)


def is_being_removed(store: Store, run: str) -> bool:
    """Whether a living process holds the run to remove it."""
    held = store.read_json(f"{run}/{LEASE}")
    return held is not None and held.get("removing", False) and _is_alive(held)


def clear_dead_lease(store: Store, run: str) -> None:
    """Remove the lease that a process left behind which was killed after its work was done."""
    if store.exists(f"{run}/{LEASE}") and not is_held(store, run):
        store.delete(f"{run}/{LEASE}")


def _identity() -> dict[str, Any]:
    """What tells this process from any other, on any machine: process ids are counted anew in every namespace."""
    return {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "machine": f"{_text('/proc/sys/kernel/random/boot_id')} {_link('/proc/self/ns/pid')}",
        "started": _started(os.getpid()),
    }


def _is_alive(held: dict[str, Any]) -> bool:
    mine = _identity()
    if held["machine"] == mine["machine"] and mine["started"]:
        return bool(_started(held["pid"]) == held["started"])
    silent = time.time() - datetime.fromisoformat(held["beat"]).timestamp()
    return silent < STALE_SECONDS


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
