"""Make a pipeline's store unavailable for a while: `python -m tests.outages [SECONDS [s3|disk [STAGE...]]]`.

Runs the flow `data-to-model` with small sizes. In each stage, `s3` stops a real S3 server for SECONDS seconds; `disk`
fills the store's separate file system for that time. The same process must continue and exit with 0, without leftovers
and with results identical to an undisturbed run; one that exits with 75 is counted and restarted. Prints each outage
and how much longer the run took.
"""

import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from tests.disks import fill, small_disk
from tests.flows.serving import Serving
from tests.processes import Running, start_module
from tests.proof import tell
from tests.s3 import s3_server
from tests.soak import RUN, differing, outcome
from tests.stops import STAGES, time_stages
from tests.support import small_values, write_config, write_corpora
from trainer.common.errors import EXIT_PREEMPTED, StorageError
from trainer.store.storage import Store

SETTINGS: dict[str, Any] = {
    "run": RUN.name,
    "training__max_steps": 60,
    "training__save_every": 5,
    "training__evaluate_every": 20,
    "evaluation__during_training": 32,
}
DISK_SIZE = "200m"


class Outages:
    """A folder with raw text and stores, and the function that makes these unavailable."""

    def __init__(self, folder: Path, kind: str, env: dict[str, str], stack: ExitStack) -> None:
        self._folder, self._env, self._number = folder, env, 0
        self._raw = write_corpora(folder / "raw")
        if kind == "s3":
            (folder / "s3").mkdir()
            server = stack.enter_context(s3_server(folder / "s3"))
            self._new, self._away = server.new_store, server.away
        else:
            disk = stack.enter_context(small_disk(folder / "disk", DISK_SIZE))
            self._new, self._away = (lambda: f"{disk}/store-{self._number}"), (lambda: filled(disk))
        self.failures: list[str] = []
        store = Store(self._new())
        running, begun = self._start(store), time.monotonic()
        self.lengths = time_stages(running, lambda: stage_of(store), 0.1)
        self.length = time.monotonic() - begun
        if (ended := running.wait()).status != 0:
            raise RuntimeError(ended.stderr)
        self._expected = self._outcome(store)

    def take_away(self, stage: str, seconds: float, draw: random.Random) -> None:
        """One run whose store is unavailable for some seconds from a random time of a stage on."""
        running: Running | None = None
        while running is None or running.status() is not None:  # the stage ended before the outage
            self._number += 1
            store = Store(self._new())
            running, begun = self._start(store), time.monotonic()
            while running.status() is None and stage_of(store) != stage:
                time.sleep(0.05)
            time.sleep(draw.uniform(0.0, self.lengths[stage]))
        gone = time.monotonic()
        with self._away():
            time.sleep(seconds)
        back = time.monotonic()
        ended, again = running.end_within(1200.0), 0
        while ended.status == EXIT_PREEMPTED:
            print(ended.stderr[-3000:], flush=True)
            again += 1
            ended = self._start(store).end_within(1200.0)
        longer = time.monotonic() - begun - (back - gone) - self.length
        told = f"{back - gone:.0f} s in {stage}: {ended.status}"
        told += f", started again {again} times" if again else ""
        print(f"  {told}, {time.monotonic() - back:.0f} s after it, {longer:.0f} s longer than without", flush=True)
        wrong = differing(self._outcome(store) if ended.status == 0 else {}, self._expected)
        staged = [file.key for file in store.walk() if file.key.startswith(".staging/")]
        if wrong or staged:
            self.failures.append(f"{told}: differs in {', '.join(wrong[:5])}; left over: {', '.join(staged)}")
            print(self.failures[-1], ended.stderr[-6000:], sep="\n", flush=True)

    def _start(self, store: Store) -> Running:
        values = small_values(self._raw, store.url, **SETTINGS)
        config = write_config(self._folder / f"job-{self._number}.yaml", values)
        return start_module(
            self._folder / f"said-{self._number}", "flows.data_to_model", config, env=self._env, count=2
        )

    def _outcome(self, store: Store) -> dict[str, Any]:
        return {name: value for name, value in outcome(store.url).items() if not name.startswith(".staging")}


def stage_of(store: Store) -> str:
    """The present stage in a store."""
    with suppress(StorageError):
        keys = [file.key for file in store.walk()]
        found = [stage for pattern, stage in STAGES.items() if any(fnmatch(key, pattern) for key in keys)]
        return found[-1] if found else "start and tokenizer"
    return "unknown"


@contextmanager
def filled(place: Path) -> Iterator[None]:
    """A full file system during the block."""
    fill(place)
    try:
        yield
    finally:
        (place / "filler").unlink()


def main(seconds: str = "5", kind: str = "s3", *stages: str) -> int:
    """Make the store unavailable in each stage, and print the figures; return 1 if anything went wrong."""
    with tempfile.TemporaryDirectory(prefix="headrace-outages-") as name, ExitStack() as stack:
        server = Serving(Path(name, "prefect"))
        stack.callback(server.kill_server)
        found = Outages(Path(name), kind, {**server.env, "HEADRACE_CACHE": f"{name}/cache"}, stack)
        print(f"one run takes {found.length:.0f} s", flush=True)
        draw = random.Random(os.getpid())
        chosen = stages or list(found.lengths)[:-1]
        for stage in chosen:
            found.take_away(stage, float(seconds), draw)
    print(*found.failures, sep="\n")
    tell(len(chosen), len(found.failures))
    return int(bool(found.failures))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
