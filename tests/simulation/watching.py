"""Invariants of a store while several processes work on it, checked at each write to the bucket."""

import hashlib
import json
import re
from collections import Counter
from functools import lru_cache
from typing import Any, NamedTuple

from tests.simulation.bucket import URL, Bucket
from tests.simulation.clients import BASES, MODEL, whole_fold
from tests.simulation.world import Process, World
from trainer.records.lease import LEASE, STALE_SECONDS
from trainer.registry.promotion import key_of
from trainer.store.manifest import MANIFEST, FileRecord, Manifest, parse_manifest
from trainer.store.names import CONFIG, FINAL, LAST

ROOT = URL.removeprefix("s3://")
OF_A_RUN = re.compile(rf"{ROOT}/(runs/[^/]+)/(.+)")
OF_DATA = re.compile(rf"{ROOT}/encoded/[^/]+/{re.escape(MANIFEST)}")
AFTER_ALL = 120.0
"""Seconds after which a process that has lost its run must not commit to it: it checks twice a minute, and an earlier
save may still be running."""


AT_ONCE = 0.5
"""Seconds within which a woken process makes its next request."""


RESENT = 10.0
"""Seconds within which that request ends, if it is refused and sent again."""


class Removal(NamedTuple):
    """The last removal of an artifact's files, requested at `begun` or just before its process froze."""

    begun: float
    ended: float
    by: Process


class Watch:
    """Records violations. In a calm world, without kills, freezes, wrong clocks and refused requests, more invariants
    must hold.
    """

    def __init__(self, world: World, bucket: Bucket, calm: bool, relied: Counter[str], runs: list[str]) -> None:
        """`relied` counts processes that rely on an artifact and have not recorded it yet; `runs` take part."""
        self._world, self._bucket, self._calm, self._relied, self._runs = world, bucket, calm, relied, runs
        bucket.written, bucket.removed = self._look_at_written, self._look_at_removed
        bucket.missed = self._look_at_missed
        self.violations: list[str] = []
        self.ended_with: dict[str, Exception] = {}
        self.seen = Counter[str]()
        self._contents: dict[str, str] = {}
        self._committed: dict[str, Process] = {}
        self._champions: list[str] = []
        self._holders: dict[str, int] = {}
        self._leases: dict[str, str] = {}
        self._ended_leases = set[tuple[str, str]]()
        self._lost: dict[tuple[str, int], float] = {}
        self._removed: dict[str, Process] = {}
        self._removals: dict[str, Removal] = {}
        self._last_looks: dict[tuple[str, Process], float] = {}
        self._since: dict[str, float] = {}
        self._beats: dict[str, float] = {}
        self._commits: dict[str, tuple[float, Process | None]] = {}
        self._late, self._gone, self._revived = set[str](), set[str](), set[str]()

    def _look_at_written(self, key: str) -> None:
        run = OF_A_RUN.fullmatch(key)
        gone = key in self._gone or (run is not None and f"{ROOT}/{run[1]}/{CONFIG}" in self._gone)
        late = gone and self._comes_late()
        if run and run[2].endswith((MANIFEST, LAST)):
            (self._revived.add if late else self._revived.discard)(run[1])
        self._gone.discard(key)
        if key == f"{ROOT}/{key_of(MODEL)}":
            self._look_at_champions(key)
        elif key.endswith(f"/{LEASE}"):
            self._look_at_lease(key)
        elif _is_of_artifact(key):
            self._look_at_manifest(key)
            self._late.update([key] * late)  # its files may be in the process of being removed

    def _look_at_champions(self, key: str) -> None:
        history = [move["run"] for move in self._object(key)["moves"]]
        if history[: len(self._champions)] != self._champions:
            self.violations.append(f"champions {self._champions} became {history}")
        self._champions = history

    def _look_at_lease(self, key: str) -> None:
        """Track who holds a run, and who lost it when. A process that has just renewed its lease must not lose it."""
        written = self._object(key)
        holder, before = written["pid"], self._holders.get(key, written["pid"])
        ended = (key, written["id"]) in self._ended_leases
        if ended and self._world.running and self._world.running.sent:
            self.seen["a lease that arrived late, and counts until it is old"] += 1
            return
        if ended:
            self.violations.append(f"{key} was taken back by a process that had lost it")
        self._holders[key] = holder
        if self._leases.get(key, written["id"]) != written["id"]:
            self._ended_leases.add((key, self._leases[key]))
        if self._leases.get(key) != written["id"]:
            self._since[key] = self._world.now
        self._leases[key] = written["id"]
        if before != holder:
            self._lost[key, before] = self._world.now
            silent = self._world.now - self._beats.get(key, 0.0)
            if self._lives(before) and (self._calm or silent < STALE_SECONDS):
                self.violations.append(f"{key} was taken from a process that showed life {silent:.0f} s before")
        self._beats[key] = self._world.now

    def _look_at_manifest(self, key: str) -> None:
        """Check that a committed artifact has its files, and the same content as in earlier commits."""
        self.seen["committed"] += 1
        self._removed.pop(key, None)
        run = OF_A_RUN.fullmatch(key)
        self._commits[key] = self._world.now, self._world.process if self._world.running else None
        manifest = self._manifest(key)
        if manifest is None:
            self.seen["a damaged manifest written once more"] += 1
            return
        names = [record.name for record in manifest.files if not self._is_whole(key, record)]
        if names and self._world.running and self._world.running.sent:
            self.seen["committed late, after its files were removed"] += 1  # which is found when it is next looked at
            self._late.add(key)
            return
        self._late.discard(key)
        if run and not self._is_holder(run[1], "commits to"):
            self.seen["committed late, by one that had lost the run"] += 1
            self._late.update([key] * bool(names))
            return
        if names and self._was_removed(key):
            self.seen["damaged by a removal at the same time"] += 1  # which is found when it is next looked at
        else:
            self.violations += [f"{key} appears without its {name}" for name in names]
        if self._contents.setdefault(key, manifest.content) != manifest.content:
            self.violations.append(f"{key} was committed with two contents")
        if run and self._calm and self._committed.setdefault(key, self._world.process) is not self._world.process:
            self.violations.append(f"{key} was committed by two processes")

    def _was_removed(self, key: str) -> bool:
        """Whether another process removed files of the artifact at about the time of its commit, or one of the two
        processes was frozen meanwhile.
        """
        if key not in self._removals:
            return False
        removal, (committed, by) = self._removals[key], self._commits[key]
        if removal.by is by:
            return False
        was_frozen = by is not None and by.frozen_from <= removal.ended and self._comes_late()
        return was_frozen or removal.begun - AFTER_ALL < committed < removal.ended + AFTER_ALL

    def _is_holder(self, run: str, does: str) -> bool:
        """Whether the running process holds a run's lease. A process that was frozen may continue briefly after losing
        it.
        """
        mine, key = self._world.process, f"{ROOT}/{run}/{LEASE}"
        if self._holders.get(key) == mine.pid:
            return True
        silent = self._world.now - max(self._lost.get((key, mine.pid), 0.0), mine.frozen_until)
        if silent > AFTER_ALL:
            self.violations.append(f"{mine.name} {does} {run}, which it lost {silent:.0f} s ago")
        return False

    def _look_at_given_back(self, key: str) -> None:
        """Check the release of a lease.

        A process reads its lease and then removes it. In between, it may freeze until another process holds the lease,
        or the request may be late. The new holder then ends and is restarted.
        """
        if self._comes_late():
            self.seen["given back late, when another had it"] += 1
        else:
            self.violations.append(f"{key} was removed by a process that does not hold it")

    def _comes_late(self) -> bool:
        """Whether a request was late, or its process froze just before sending it."""
        running = self._world.running
        if running is None:
            return False
        return running.sent or self._world.now - running.process.frozen_until < AT_ONCE

    def _is_held_for_long(self, run: str) -> bool:
        """Whether a live process holds it, did so before the present check for it began, and has shown life lately."""
        key = f"{ROOT}/{run}/{LEASE}"
        if not self._lives(self._holders.get(key, 0)) or self._world.now - self._since[key] <= AFTER_ALL:
            return False
        return self._calm or self._world.now - self._beats[key] < STALE_SECONDS

    def _lives(self, pid: int) -> bool:
        return any(each.pid == pid and each.alive for each in self._world.processes)

    def _is_whole(self, key: str, record: FileRecord) -> bool:
        """Whether a file of a manifest was written as listed; bits flipped later are ignored."""
        there = self._bucket.objects.get(f"{key.removesuffix(MANIFEST)}{record.name}")
        return there is not None and hashlib.sha256(there.written).hexdigest() == record.sha256

    def _manifest(self, key: str) -> Manifest | None:
        """A manifest as it was written; None if a process wrote one with a flipped bit."""
        try:
            return _parsed(self._bucket.objects[key].written)
        except ValueError:
            if key not in self._bucket.flipped:
                raise
            return None

    def _look_at_removed(self, key: str) -> None:
        if self._world.running is None:
            return
        process = self._world.process
        self._gone.add(key)
        now, sent = self._world.now, self._world.running.sent
        thawed = not sent and now - process.frozen_until < RESENT
        removal = Removal(process.frozen_from if thawed else now, now, process)
        self._removals[f"{key.rpartition('/')[0]}/{MANIFEST}"] = removal
        who = process.name.split()[0]
        run = OF_A_RUN.fullmatch(key)
        if key.startswith(f"{ROOT}/measures/"):
            self.seen[f"{who} removed of measures"] += 1
        if key.endswith(f"/{MANIFEST}"):
            self.seen[f"{who} removed of {key.removeprefix(ROOT).split('/')[1]}"] += 1
            if self._world.running.sent:
                self.seen["removed late"] += 1  # also artifacts rebuilt meanwhile, which are then rebuilt again
            elif who == "collect" and not run:
                self._look_at_collected(key, process)
        if run and run[2] != LEASE and who != "leftovers":
            self._is_holder(run[1], f"removes {run[2]} of")
        if run and who == "leftovers" and self._is_held_for_long(run[1]):
            self.violations.append(f"{key} was removed as a leftover of a run that is held")
        if run and run[2] == LEASE:
            holder = self._holders.pop(key, process.pid)
            self._ended_leases.add((key, self._leases.pop(key, "")))
            self._lost[key, holder] = self._world.now
            if holder != process.pid and self._lives(holder):
                self._look_at_given_back(key)
        if run and run[2] == CONFIG:
            self._committed = {each: by for each, by in self._committed.items() if f"/{run[1]}/" not in each}
            if self._champions[-1:] == [run[1]]:
                self.violations.append(f"{run[1]}, the champion, was removed")
            mine = self._world.process.pid
            if self._calm and self._holders.get(f"{ROOT}/{run[1]}/{LEASE}", mine) != mine:
                self.violations.append(f"{run[1]}, which a process held, was removed")
            if who == "collect" and not self._world.running.sent:
                self._look_at_base(f"{ROOT}/{run[1]}")

    def _look_at_missed(self, key: str) -> None:
        """Note when a process that removed a manifest last found it missing."""
        if self._world.running and (key, self._world.process) in self._last_looks:
            self._last_looks[key, self._world.process] = self._world.now

    def _look_at_collected(self, key: str, process: Process) -> None:
        """Note the removal of an artifact that is read, unless it was built again after its collector's last look."""
        looked = self._last_looks.get((key, process), 0.0)
        if self._readers(key) and 0.0 < looked <= self._commits[key][0]:
            self.seen["built again after the last look, and removed"] += 1  # which is found when it is next looked at
        elif self._readers(key):
            self._removed[key] = process
        self._last_looks[key, process] = 0.0

    def _look_at_base(self, run: str) -> None:
        """Check that no other run had recorded that it begins with a removed run before the removal began."""
        since = self._since.get(f"{run}/{LEASE}", 0.0)
        self.violations += [
            f"{run} was removed, but {reader} records that it begins with it"
            for reader, each in self._bucket.objects.items()
            if run in self._inputs(reader) and each.modified < since
        ]

    def _readers(self, key: str) -> list[str]:
        """The runs and data that record or rely on an artifact, given by the key of its manifest."""
        artifact = key.removesuffix(f"/{MANIFEST}")
        told = [each for each in self._bucket.objects if artifact in self._made_from(each)]
        return told + ["a reader without a record yet"] * self._relied[artifact.removeprefix(f"{ROOT}/")]

    def _inputs(self, key: str) -> list[str]:
        """The artifacts that a run's record lists as its inputs; empty for other files."""
        run = OF_A_RUN.fullmatch(key)
        if not run or run[2] != CONFIG:
            return []
        return [f"{ROOT}/{made_from['key']}" for made_from in self._object(key)["inputs"].values()]

    def _made_from(self, key: str) -> list[str]:
        """The inputs of a run or of data."""
        manifest = self._manifest(key) if OF_DATA.fullmatch(key) else None
        return [f"{ROOT}/{each.key}" for each in manifest.inputs.values()] if manifest else self._inputs(key)

    def look_at_ended(self, process: Process) -> None:
        """Check that a successful collection removed nothing that runs read."""
        for key in [key for key, by in self._removed.items() if by is process]:
            del self._removed[key]
            if self._readers(key):
                self.violations.append(f"{key} was removed, which {', '.join(self._readers(key))} read")

    def look_at_rest(self) -> None:
        """Check, when all processes have ended, that committed artifacts are complete."""
        for key in self._bucket.objects:
            if _is_of_artifact(key) and (manifest := self._manifest(key)):
                lacking = [record.name for record in manifest.files if not self._is_whole(key, record)]
                if lacking and (key in self._late or self._was_removed(key)):
                    self.seen["left damaged by a removal at the same time"] += 1
                else:
                    self.violations += [f"{key} is left without its {name}" for name in lacking]

    def look_at_end(self) -> None:
        """Check, at the end, that every run has the sum over all its samples, and that no inputs are missing."""
        self.look_at_rest()
        objects, left = self._bucket.objects, set[str]()
        for name in self._runs:
            final, error = objects.get(f"{ROOT}/runs/{name}/{FINAL}/total.txt"), self.ended_with.get(f"last {name}")
            if final is not None and final.data == final.written == whole_fold(name).encode():
                continue
            if final is not None and final.written != whole_fold(name).encode():
                self.violations.append(f"{name} ended with another sum")
            elif final is None and f"runs/{name}" in self._revived:
                self.seen["left to a person: what was removed came back in part, by a late request"] += 1
            elif error is not None and (self._bucket.flipped or BASES.get(name) in left):
                self.seen[f"left to a person, with {type(error).__name__}: bits had flipped"] += 1
            else:
                self.violations.append(f"{name} ended with {'a damaged' if final else 'no'} sum")
            left.add(name)
        if (error := self.ended_with.get("last predict")) and not (left or self._bucket.flipped):
            self.violations.append(f"predictions ended with {error}")
        for key in objects:
            for made_from in self._inputs(key):
                if f"{made_from}/{MANIFEST}" not in objects and f"{made_from}/{CONFIG}" not in objects:
                    self.violations.append(f"{key} names {made_from}, which is gone")

    def look_at_told(self, promoted: list[str], predicted: list[str]) -> None:
        """Check that reported promotions are among the moves, and that reported predictions exist."""
        if lost := {*promoted} - {*self._champions}:
            self.violations.append(f"{lost} were reported as promoted; the moves are {self._champions}")
        for key in dict.fromkeys(f"{ROOT}/{each}/{MANIFEST}" for each in predicted):
            if key not in self._bucket.objects and not self._was_removed(key):
                self.violations.append(f"{key} was reported as published, and is missing")

    def _object(self, key: str) -> Any:
        return json.loads(self._bucket.objects[key].written)


_parsed = lru_cache(maxsize=1024)(parse_manifest)
"""Cached, because a manifest is checked when it appears and at the end."""


def _is_of_artifact(key: str) -> bool:
    """Whether a key is a manifest's, except for a damaged checkpoint that was moved aside file by file."""
    return key.endswith(f"/{MANIFEST}") and "/damaged-" not in key
