"""Detection of lost ranks, and an error message on the other ranks.

If a rank's process ends, its connections close, and the others' next collective fails with a message about a port. If
its machine or network fails, nothing happens: the others would wait for days, as they do for a rank that prepares data.
So every rank sends heartbeats to the TCP store by which the ranks have met (MASTER_ADDR, MASTER_PORT), and writes there
the error that ends it. A rank that sees no heartbeat of another one for `SILENT_SECONDS` exits as if killed, because
its collective would keep waiting.

The store is in the process of rank 0, or in torchrun's own. If torchrun is killed, the ranks still reach each other:
they stop together and save, for which they have the same time.
"""

import json
import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from typing import Any, TypeVar

import torch.distributed as dist
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from trainer.common.errors import EXIT_CRASHED, EXIT_PREEMPTED, Preempted, RankLost
from trainer.common.process import in_thread
from trainer.common.stopping import defer_stop, end_at_once, request_stop, stop_requested
from trainer.common.transient import exit_status

log = logging.getLogger(__name__)


BEAT_SECONDS = 2.0
SILENT_SECONDS = 90.0
CALL_SECONDS = 3 * BEAT_SECONDS
"""A live rank sends at least one heartbeat in this time."""
OWN_END_SECONDS = 60.0
"""Time for training itself to fail and to finish a save, before the process is ended."""

WORD = "word"

BY_TORCHRUN = "TORCHELASTIC_USE_AGENT_STORE"
"""The variable that torchrun sets to `True` if the store is in its own process."""

T = TypeVar("T")


class Peers:
    """The ranks of a run, as seen by one of them."""

    def __init__(self, rank: int, ranks: int, name: str) -> None:
        """`name` identifies this group of ranks, because the TCP store may outlive it."""
        self._rank, self._hosts = rank, [""] * ranks
        address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        store = TCPStore(*address, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=SILENT_SECONDS))
        self._store, self._over = PrefixStore(name, store), threading.Event()
        self._by_torchrun, self._torchrun_ended = os.environ.get(BY_TORCHRUN) == "True", False
        self._watched = [other for other in range(ranks) if other != rank] if rank == 0 else [0]
        self._silent = dict.fromkeys(self._watched, 0.0)
        self._word: RankLost | None = None
        self._beat(0)

    def begin(self, hosts: list[str]) -> None:
        """Start watching, after every rank has sent its first heartbeat."""
        self._hosts = hosts
        for work in (self._talk, self._judge):
            threading.Thread(target=work, name="peers", daemon=True).start()

    def end(self) -> None:
        """Stop watching."""
        self._over.set()

    def leave_word(self, error: Exception) -> None:
        """Tell the other ranks the error that ends this rank, unless one has already been written."""
        self._write(f"{self._name(self._rank)} ended with {type(error).__name__}: {error}", exit_status(error))

    def explain(self, error: Exception) -> RankLost:
        """The cause of a broken connection: the error that another rank has written, or a rank without heartbeats."""
        if word := _in_time(self._read_word):
            return word
        lost = _in_time(self._call_roll)
        return self._announce_lost([self._home] if lost is None else [self._name(rank) for rank in lost]) or RankLost(
            f"the connection to another rank broke, although all ranks are alive: {error}", EXIT_CRASHED
        )

    def _name(self, rank: int) -> str:
        return f"rank {rank} of {len(self._hosts)} ({self._hosts[rank]})"

    @property
    def _home(self) -> str:
        """The process that holds the store."""
        return f"torchrun on {os.environ['MASTER_ADDR']}" if self._by_torchrun else self._name(0)

    def _announce_lost(self, lost: list[str]) -> RankLost | None:
        """Write, unless a rank already has, and return the error that these processes are lost."""
        if not lost:
            return None
        message = (
            f"{', '.join(lost)} {'is' if len(lost) == 1 else 'are'} lost: the process was killed, or its machine or "
            "network failed, or it is suspended; start the same command again on every machine to continue from the "
            "last checkpoint"
        )
        return self._write(message, EXIT_PREEMPTED)

    def _write(self, message: str, status: int) -> RankLost:
        """Write an error for the other ranks, unless one has already been written, and return it."""
        error = json.dumps({"message": message, "status": status})
        _in_time(lambda: self._store.compare_set(WORD, "", error))
        return RankLost(message, status)

    def _beat(self, number: int) -> None:
        self._store.set(f"beat/{self._rank}", str(number))

    def _beats(self, ranks: list[int]) -> list[bytes]:
        found: list[bytes] = self._store.multi_get([f"beat/{rank}" for rank in ranks])
        return found

    def _read_word(self) -> RankLost | None:
        return RankLost(**json.loads(self._store.get(WORD))) if self._store.check([WORD]) else None

    def _call_roll(self) -> list[int]:
        """The other ranks that send no heartbeat during `CALL_SECONDS`."""
        others = [rank for rank in range(len(self._hosts)) if rank != self._rank]
        before = self._beats(others)
        time.sleep(CALL_SECONDS)
        return [rank for rank, old, new in zip(others, before, self._beats(others), strict=True) if old == new]

    def _talk(self) -> None:
        """Send heartbeats and read those of others, until the store is unreachable."""
        seen, number = [b""] * len(self._watched), 0
        while not self._over.wait(BEAT_SECONDS):
            number += 1
            try:
                self._beat(number)
                found = self._beats(self._watched)
                word = self._read_word()
            except RuntimeError as error:
                if self._by_torchrun and isinstance(error, dist.DistNetworkError) and not self._over.is_set():
                    log.error("%s has ended: training stops after this step", self._home)
                    self._torchrun_ended = True
                    request_stop()
                return  # else rank 0 is lost or has ended
            for rank, old, new in zip(self._watched, seen, found, strict=True):
                if old != new:
                    self._silent[rank] = 0.0
            seen, self._word = found, word

    def _judge(self) -> None:
        """End this process if another rank is silent for too long or has written an error, unless it ends by itself.

        Seconds are counted here, so that time in which this process was suspended does not count.
        """
        while not self._over.wait(1.0):
            for rank in self._watched:
                self._silent[rank] += 1.0
            lost = [self._name(rank) for rank in self._watched if self._silent[rank] > SILENT_SECONDS]
            if lost and self._torchrun_ended:  # nothing is heard of the ranks since
                lost = [self._home]
            word = self._word or self._announce_lost(lost)
            if word is not None and not self._over.wait(OWN_END_SECONDS):
                _report(word)
                end_at_once(word.status)


def _log_error(error: RankLost) -> None:
    log.error("%s", error)


_peers: Peers | None = None
_report: Callable[[RankLost], None] = _log_error


def report_lost_ranks(report: Callable[[RankLost], None]) -> None:
    """Have this function report the error before this process is ended because of another rank; by default it is
    logged.
    """
    global _report
    _report = report


def require_torchrun() -> None:
    """Raise `RankLost` if the torchrun that holds the store has ended; called before the ranks meet.

    It opens the store before it starts the ranks, so a refused connection is no reason to wait, but torch does so for
    half an hour.
    """
    if os.environ.get(BY_TORCHRUN) != "True":
        return
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    try:
        socket.create_connection((host, port), SILENT_SECONDS).close()
    except ConnectionRefusedError as error:
        raise RankLost(
            f"torchrun on {host} ended before the ranks met (nothing listens on port {port}); start the same command "
            "again on every machine"
        ) from error
    except OSError:
        return  # not reachable yet: torch tries again


def watch_peers(rank: int, ranks: int, control: Any) -> None:
    """Start checking that the other ranks are alive. Called by every rank, once or more."""
    global _peers
    if _peers is not None:
        return
    name = [uuid.uuid4().hex]
    dist.broadcast_object_list(name, src=0, group=control)
    _peers = Peers(rank, ranks, name[0])
    hosts = [""] * ranks
    dist.all_gather_object(hosts, socket.gethostname(), group=control)
    _peers.begin(hosts)


def leave_peers() -> None:
    """Stop checking."""
    global _peers
    if _peers is not None:
        _peers.end()
        _peers = None


@contextmanager
def explaining_lost_ranks() -> Iterator[None]:
    """Raise `RankLost` instead of a library's error about a lost rank; write any other error for the other ranks."""
    try:
        yield
    except (RankLost, Preempted):
        raise
    except Exception as error:
        if _peers is None:
            raise
        if _is_broken_connection(error):
            # torchrun asks the other ranks to stop as soon as one has ended, which must not cut the explanation short.
            # If this rank was asked to stop first, the others were too, and are not lost.
            with nullcontext() if stop_requested() else defer_stop():
                lost = _peers.explain(error)
            raise lost from error
        _peers.leave_word(error)
        raise


def _is_broken_connection(error: Exception) -> bool:
    """Whether a collective failed because of another rank. Gloo has no exception class; its messages start with the
    path of its source files.
    """
    return isinstance(error, dist.DistError) or (isinstance(error, RuntimeError) and "gloo/transport/" in str(error))


def _in_time(work: Callable[[], T]) -> T | None:
    """The result of a request to the store; None if the store is unreachable or does not answer in time."""
    try:
        return in_thread(work, "peers").result(3 * CALL_SECONDS)
    except (RuntimeError, TimeoutError):
        return None
