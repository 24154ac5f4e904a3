"""Files of machines that are not real: each has a cache of its own, in which killed processes leave what they had."""

import fcntl
import os
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from tests.simulation.world import REQUEST_SECONDS, Process, World
from trainer.store import remote
from trainer.store.private_folders import PrivateFolder

OTHERS_FIRST = 0.03
"""The share of locks that are waited for before which others go on."""
LOOK_SECONDS, MOST_SECONDS = 0.1, 30.0
"""Between two looks at a lock that somebody has; doubled each time, up to the most."""


class Locks:
    """What of the module `fcntl` locks files: they are the kernel's, and are waited for in this world's time."""

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
    """The private folders of processes below `root`, and whose they are: nobody but their own process removes them
    while it lives, and a process that was killed removes nothing.
    """

    def __init__(self, world: World, root: Path) -> None:
        self._world, self._root = world, root
        self._makers: dict[Path, Process] = {}
        self.violations: list[str] = []

    def cache(self) -> Path:
        """The cache of the machine that asks."""
        return self._root / (self._world.process.machine.name if self._world.running else "outside")

    def make(self, base: Path) -> PrivateFolder:
        """Make a private folder for the process that asks."""
        made = PrivateFolder(base)
        if self._world.running:
            self._makers[made.path] = self._world.process
        return made

    def reshard(self, process: Process) -> None:
        """What a kernel does when a process was killed: the locks of what it had fetched are nobody's."""
        for each in [each for each in remote._own_folders if each[0] == process.pid]:
            remote._own_folders.pop(each)[0].remove()

    def rmtree(self, path: Path, ignore_errors: bool = False) -> None:
        """What of the module `shutil` removes private folders."""
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
        """When all processes have ended, and each machine was swept: nothing is left of any."""
        caches = [folder for folder in self._root.iterdir() if folder.is_dir()]
        left = [path for cache in caches for path in cache.glob("work/*")]
        left += [path for cache in caches for path in cache.iterdir() if path.suffix.lstrip(".").isdigit()]
        self.violations += [f"{path.relative_to(self._root)} is left on a machine" for path in left]


_unlink = Path.unlink


def remove_folder(folder: str | Path) -> None:
    """`shutil.rmtree` in less time, of folders that nobody else writes to."""
    with os.scandir(folder) as entries:
        for entry in entries:
            (remove_folder if entry.is_dir() else os.unlink)(entry.path)
    os.rmdir(folder)
