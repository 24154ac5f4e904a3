"""Whether the other ranks live, and what is told where one is lost.

A rank whose process ends closes its connections, so that the others' next collective fails, with a message that names a
port. One whose machine or cable is gone says nothing: others would wait for it for days, as they do for a rank that
prepares data. So every rank shows life in the store by which the ranks have met (MASTER_ADDR, MASTER_PORT), and leaves
word there of the error that ends it. Who hears nothing of another rank for `SILENT_SECONDS` ends as a kill would end
it: its collective waits on.
"""

import json
import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import torch.distributed as dist
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from trainer.common.errors import EXIT_CRASHED, EXIT_PREEMPTED, Preempted, RankLost
from trainer.common.process import in_thread
from trainer.common.stopping import end_at_once
from trainer.common.transient import exit_status

log = logging.getLogger(__name__)


BEAT_SECONDS = 2.0
SILENT_SECONDS = 90.0
CALL_SECONDS = 3 * BEAT_SECONDS
"""In which a rank that lives shows life at least once."""
OWN_END_SECONDS = 60.0
"""For the training itself to notice that it cannot go on, and to finish a save, before the process is ended."""

WORD = "word"

T = TypeVar("T")


class Peers:
    """The ranks of a run, as one of them sees them."""

    def __init__(self, rank: int, ranks: int, name: str) -> None:
        """`name` is that of this meeting of theirs: a store may outlive them."""
        self._rank, self._hosts = rank, [""] * ranks
        address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        store = TCPStore(*address, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=SILENT_SECONDS))
        self._store, self._over = PrefixStore(name, store), threading.Event()
        self._watched = [other for other in range(ranks) if other != rank] if rank == 0 else [0]
        self._silent = dict.fromkeys(self._watched, 0.0)
        self._word: dict[str, Any] | None = None
        self._beat(0)

    def begin(self, hosts: list[str]) -> None:
        """Watch, once every rank has shown life for the first time."""
        self._hosts = hosts
        for work in (self._talk, self._judge):
            threading.Thread(target=work, name="peers", daemon=True).start()

    def end(self) -> None:
        """Watch no more."""
        self._over.set()

    def leave_word(self, error: Exception) -> None:
        """Tell the others which error of its own ends this rank, if none has left word before."""
        told = {
            "message": f"{self._name(self._rank)} ended with {type(error).__name__}: {error}",
            "status": exit_status(error),
        }
        _in_time(lambda: self._store.compare_set(WORD, "", json.dumps(told)))

    def explain(self, error: Exception) -> RankLost:
        """What is behind a connection that broke: an error that another rank has told, or one that is silent from now
        on.
        """
        word = _in_time(self._read_word)
        if word is None:
            lost = _in_time(self._call_roll)
            word = self._find_lost([0] if lost is None else lost) or {
                "message": f"the connection to another rank broke, though all of them live: {error}",
                "status": EXIT_CRASHED
            }  # fmt: skip
        return RankLost(word["message"], word["status"])

    def _name(self, rank: int) -> str:
        return f"rank {rank} of {len(self._hosts)} ({self._hosts[rank]})"

    def _find_lost(self, ranks: list[int]) -> dict[str, Any] | None:
        """The word that the first who finds ranks lost leaves for the others."""
        if not ranks:
            return None
        message = (
            f"{', '.join(map(self._name, ranks))} {'is' if len(ranks) == 1 else 'are'} lost: the process was killed, "
            "or its machine or the network to it is gone; start the same command again on every machine: it continues "
            "from the last checkpoint"
        )
        told = {"message": message, "status": EXIT_PREEMPTED}
        _in_time(lambda: self._store.compare_set(WORD, "", json.dumps(told)))
        return told

    def _beat(self, number: int) -> None:
        self._store.set(f"beat/{self._rank}", str(number))

    def _beats(self, ranks: list[int]) -> list[bytes]:
        found: list[bytes] = self._store.multi_get([f"beat/{rank}" for rank in ranks])
        return found

    def _read_word(self) -> dict[str, Any] | None:
        found: dict[str, Any] | None = json.loads(self._store.get(WORD)) if self._store.check([WORD]) else None
        return found

    def _call_roll(self) -> list[int]:
        """The other ranks that show no life from now on."""
        others = [rank for rank in range(len(self._hosts)) if rank != self._rank]
        before = self._beats(others)
        time.sleep(CALL_SECONDS)
        return [rank for rank, old, new in zip(others, before, self._beats(others), strict=True) if old == new]

    def _talk(self) -> None:
        """Show life, and look for that of others, until the store is away."""
        seen, number = [b""] * len(self._watched), 0
        while not self._over.wait(BEAT_SECONDS):
            number += 1
            try:
                self._beat(number)
                found = self._beats(self._watched)
                word = self._read_word()
            except RuntimeError:
                return  # rank 0 is lost, or has ended
            for rank, old, new in zip(self._watched, seen, found, strict=True):
                if old != new:
                    self._silent[rank] = 0.0
            seen, self._word = found, word

    def _judge(self) -> None:
        """End this process once another one is silent for too long, or word was left, unless it ends by itself.

        What is counted is time in which this process was not suspended itself.
        """
        while not self._over.wait(1.0):
            for rank in self._watched:
                self._silent[rank] += 1.0
            lost = [rank for rank, seconds in self._silent.items() if seconds > SILENT_SECONDS]
            word = self._word or self._find_lost(lost)
            if word is not None and not self._over.wait(OWN_END_SECONDS):
                log.error("%s", word["message"])
                end_at_once(word["status"])


_peers: Peers | None = None


def watch_peers(rank: int, ranks: int, control: Any) -> None:
    """From now on, see whether the other ranks live. Called by every rank, once or more often."""
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
    """See no more whether they live."""
    global _peers
    if _peers is not None:
        _peers.end()
        _peers = None


@contextmanager
def explaining_lost_ranks() -> Iterator[None]:
    """Raise `RankLost` in the place of what a library says when another rank is gone; tell the others of any other
    error.
    """
    try:
        yield
    except (RankLost, Preempted):
        raise
    except Exception as error:
        if _peers is None:
            raise
        if _is_broken_connection(error):
            raise _peers.explain(error) from error
        _peers.leave_word(error)
        raise


def _is_broken_connection(error: Exception) -> bool:
    """Whether a collective failed because of another rank. Gloo has no class for that; its messages begin with its
    files.
    """
    return isinstance(error, dist.DistError) or (isinstance(error, RuntimeError) and "gloo/transport/" in str(error))


def _in_time(work: Callable[[], T]) -> T | None:
    """What a look into the store gives; None if the store is away, or does not answer in time."""
    try:
        return in_thread(work, "peers").result(3 * CALL_SECONDS)
    except (RuntimeError, TimeoutError):
        return None
