"""Small disks in memory, which tests fill."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


def mounted(folder: Path, options: str) -> bool:
    """Mount a file system in memory on a folder, as root or with sudo; whether that is permitted here."""
    folder.mkdir(exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    return any(run_quietly([*sudo, *command]) for sudo in ([], ["sudo", "-n"]))


def run_quietly(command: list[str]) -> bool:
    try:
        return subprocess.run(command, capture_output=True).returncode == 0
    except FileNotFoundError:
        return False


@contextmanager
def unmounted_at_end(folder: Path) -> Iterator[None]:
    """Unmount a folder after the block."""
    try:
        yield
    finally:
        assert any(run_quietly([*sudo, "umount", "--lazy", str(folder)]) for sudo in ([], ["sudo", "-n"]))


@contextmanager
def small_disk(folder: Path, size: str = "12m") -> Iterator[Path]:
    """A disk of its own, that may be filled."""
    if not mounted(folder, f"size={size}"):
        pytest.fail("this user may not mount: no disk can be filled here")
    with unmounted_at_end(folder):
        yield folder


def fill(disk: Path, leaving: int = 0) -> None:
    """Write until nothing more fits, and then leave some bytes."""
    with open(disk / "filler", "ab", buffering=0) as filler:
        for size in (2**16, 2**12, 1):
            try:
                while True:
                    filler.write(b"\0" * size)
            except OSError:
                continue
        filler.truncate(filler.tell() - leaving)
