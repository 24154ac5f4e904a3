"""Limits of this process's control groups, such as those of a container. Linux only; elsewhere there are none.

A group is limited by all groups above it, too. Version 2 has one tree, version 1 one for each resource. Sources: the
kernel's documentation, admin-guide/cgroup-v2.rst, admin-guide/cgroup-v1/memory.rst and scheduler/sched-bwc.rst.
"""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath

MOUNTED = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")


def cpu_quota(mounted: Path = MOUNTED, own: Path = OWN) -> float | None:
    """The processor time that this process's groups may use, in seconds per second; None if it is not limited."""
    quotas = []
    for folder, unified in _groups("cpu", mounted, own):
        names = ["cpu.max"] if unified else ["cpu.cfs_quota_us", "cpu.cfs_period_us"]
        words = [word for name in names for word in _words(folder / name)]
        if len(words) == 2 and all(word.isdecimal() for word in words):  # not `max`, or -1 in version 1
            quotas.append(int(words[0]) / int(words[1]))
    return min(quotas, default=None)


def memory_limit(mounted: Path = MOUNTED, own: Path = OWN) -> int | None:
    """The bytes of memory that this process's groups may use; None if they are not limited."""
    limits: list[int] = []
    for folder, unified in _groups("memory", mounted, own):
        words = _words(folder / ("memory.max" if unified else "memory.limit_in_bytes"))
        limits.extend(int(word) for word in words if word.isdecimal())
    return min(limits, default=None)


def _groups(resource: str, mounted: Path, own: Path) -> Iterator[tuple[Path, bool]]:
    """Yield the folders of this process's groups, and whether each is of version 2.

    A container may see the path of its group in the host's tree, but only its own group, as the root.
    """
    for line in _text(own).splitlines():
        _, resources, path = line.split(":", 2)
        if not resources or resource in resources.split(","):
            group = PurePosixPath(path.lstrip("/"))
            base = mounted / resource if resources else mounted
            for each in (group, *group.parents):
                if ".." not in each.parts:
                    yield base / each, not resources


def _words(path: Path) -> list[str]:
    return _text(path).split()


def _text(path: Path) -> str:
    with suppress(OSError):
        return path.read_text()
    return ""
