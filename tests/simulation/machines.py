"""Files of simulated machines: each has its own cache, in which killed processes leave their files."""

import fcntl
import os
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from tests.simulation.world import REQUEST_SECONDS, Process, World
from trainer.store import remote
from trainer.store.private_folders import PrivateFolder

OTHERS_FIRST = 0.03
"""The share of blocking locks before which other processes run."""
LOOK_SECONDS, MOST_SECONDS = 0.1, 30.0
"""Interval between attempts to take a held lock; doubled each time, up to the maximum."""


class Locks:
    """Replacement for the locks of `fcntl`: real locks of the kernel, with waits in simulated time."""

    LOCK_EX, LOCK_NB = fcntl.LOCK_EX, fcntl.LOCK_NB

    def __init__(self, world: World) -> None:
        self._world = world

    def flock(self, file: int | IO[Any], how: int) -> None:
        world, seconds = self._world, LOOK_SECONDS
        if not how & fcntl.LOCK_NB and world.draw.random() < OTHERS_FIRST:
            world.sleep(world.draw.uniform(*REQUEST_SECONDS))
        world.require_alive()
        while True:
            try:
                return fcntl.flock(file, how | fcntl.LOCK_NB)
            except BlockingIOError:
                if how & fcntl.LOCK_NB:
                    raise
            world.sleep(seconds)
            seconds = min(2 * seconds, MOST_SECONDS)


class Folders:
    """The private folders below `root` and their processes: only the own process may remove a folder while it is alive,
    and a killed process removes nothing.
    """

    def __init__(self, world: World, root: Path) -> None:
        self._world, self._root = world, root
        self._makers: dict[Path, Process] = {}
        self.violations: list[str] = []

    def cache(self) -> Path:
        """The cache of the running process's machine."""
        return self._root / (self._world.process.machine.name if self._world.running else "outside")

    def make(self, base: Path) -> PrivateFolder:
        """Create a private folder for the running process."""
        made = PrivateFolder(base)
        if self._world.running:
            self._makers[made.path] = self._world.process
        return made

    def reshard(self, process: Process) -> None:
        """Release a killed process's locks on fetched files, as a kernel would."""
        for each in [each for each in remote._own_folders if each[0] == process.pid]:
            remote._own_folders.pop(each)[0].remove()

    def rmtree(self, path: Path, ignore_errors: bool = False) -> None:
        """Replacement for `shutil.rmtree`."""
        if self._world.runs_killed():
            return
        maker = self._makers.pop(path, None)
        if maker is not None and self._world.running and maker is not self._world.process and self._lives(maker):
            self.violations.append(f"{self._world.process.name} swept a folder in which {maker.name} works")
        with suppress(*[FileNotFoundError] * ignore_errors):
            remove_folder(path)

    def unlink(self, path: Path, missing_ok: bool = False) -> None:
        """`Path.unlink`."""
        if not self._world.runs_killed():
            _unlink(path, missing_ok)

    def _lives(self, process: Process) -> bool:
        return process.alive and process in self._world.processes

    def look_at_swept(self) -> None:
        """Check that nothing is left when all processes have ended and each machine was swept."""
        caches = [folder for folder in self._root.iterdir() if folder.is_dir()]
        left = [path for cache in caches for path in cache.glob("work/*")]
        left += [path for cache in caches for path in cache.iterdir() if path.suffix.lstrip(".").isdigit()]
        self.violations += [f"{path.relative_to(self._root)} is left on a machine" for path in left]


_unlink = Path.unlink


def remove_folder(folder: str | Path) -> None:
    """A faster `shutil.rmtree`, for folders that no other process writes to."""
    with os.scandir(folder) as entries:
        for entry in entries:
            (remove_folder if entry.is_dir() else os.unlink)(entry.path)
    os.rmdir(folder)
