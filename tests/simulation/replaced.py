"""Replace time, threads, processes, their files and the bucket by simulated ones during a trial."""

import fcntl
import logging
import os
import random
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import chdir, contextmanager
from datetime import datetime
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from tests.simulation.bucket import Bucket
from tests.simulation.machines import Folders, Locks, remove_folder
from tests.simulation.world import Lock, Pool, Threading, World, wrong_clock
from tests.trainer.curating import Here
from trainer.common import stopping
from trainer.curation import curate
from trainer.records import lease
from trainer.store import checked_files, private_folders, remote
from trainer.training import checkpoint

TRACE = "SIMULATION_TRACE"

EVERYWHERE: tuple[Any, ...] = (
    datetime, stopping.wait, ThreadPoolExecutor, checked_files.machine_cache, fcntl, private_folders.PrivateFolder,
)  # fmt: skip
"""Objects that are replaced in every module of the project that imports them."""


@contextmanager
def replaced(seed: int, world: World, bucket: Bucket, folders: Folders) -> Iterator[None]:
    """Make the project's code use the simulated time, threads, machines and bucket during the block."""
    fake = SimpleNamespace(url_to_fs=lambda url, **_: (bucket, url.removeprefix("s3://")))
    names, real_pid = random.Random(seed), os.getpid()
    instead = dict(
        zip(
            EVERYWHERE,
            (wrong_clock(world), world.sleep, partial(Pool, world), folders.cache, Locks(world), folders.make),
            strict=True,
        )
    )
    with (
        patch.multiple(time, time=world.clock, monotonic=world.monotonic, sleep=world.sleep),
        patch.object(uuid, "uuid4", lambda: uuid.UUID(int=names.getrandbits(128))),
        patch.object(os, "getpid", lambda: world.process.pid if world.running else real_pid),
        patch.object(Path, "unlink", lambda path, missing_ok=False: folders.unlink(path, missing_ok)),
    ):
        changed: list[tuple[Any, str, Any]] = []

        def change(module: Any, name: str, value: Any) -> None:
            changed.append((module, name, getattr(module, name)))
            setattr(module, name, value)

        for module, name, real in _places(len(sys.modules)):
            change(module, name, instead[real])
        change(private_folders, "shutil", SimpleNamespace(rmtree=folders.rmtree))
        change(private_folders, "socket", SimpleNamespace(gethostname=lambda: folders.cache().name))
        change(private_folders, "_kernel", lambda: "kernel")
        change(remote, "fsspec", fake)
        change(remote, "atexit", SimpleNamespace(register=lambda work: None))
        change(remote, "_turn", Lock(world))
        change(curate, "Workers", Here)
        change(lease, "threading", Threading(world))
        change(lease, "_identity", lambda: _identity(world))
        change(lease, "_started", lambda pid: _started(world, pid))
        change(lease, "_is_hidden", lambda pid: False)
        change(checkpoint, "_find_impossible", lambda *_: None)  # checks tensors, which do not exist here
        try:
            yield
        finally:
            for module, attribute, value in reversed(changed):
                setattr(module, attribute, value)


@cache
def _places(modules: int) -> list[tuple[Any, str, Any]]:
    """All places in the project's modules with an object of `EVERYWHERE`; `modules` only invalidates the cache."""
    wanted = {id(real): real for real in EVERYWHERE}
    return [
        (module, name, value)
        for key, module in list(sys.modules.items())
        if key.startswith("trainer.")
        for name, value in vars(module).items()
        if id(value) in wanted
    ]


def _identity(world: World) -> dict[str, Any]:
    if world.running is None:
        return {"host": "outside", "pid": 1, "machine": "outside", "started": "0"}
    process = world.process
    return {
        "host": process.machine.name, "pid": process.pid, "machine": process.machine.name,
        "started": str(process.started),
    }  # fmt: skip


def _started(world: World, pid: int) -> str:
    return next((str(each.started) for each in world.processes if each.pid == pid and each.alive), "")


@contextmanager
def logged_nowhere() -> Iterator[None]:
    """Disable logging unless `SIMULATION_TRACE` is set."""
    before = logging.root.manager.disable
    if not os.environ.get(TRACE):
        logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


@contextmanager
def in_memory() -> Iterator[None]:
    """A folder for files that stores stage and fetch, in memory if possible.

    Paths are relative and therefore the same each time, because locks are named by digests of them.
    """
    shared = Path("/dev/shm")
    folder = tempfile.mkdtemp(dir=shared if shared.is_dir() else None)
    try:
        with (
            chdir(folder),
            patch.dict(os.environ, {"HEADRACE_CACHE": "cache"}),
            patch.object(tempfile, "tempdir", folder),
        ):
            yield
    finally:
        remove_folder(folder)
