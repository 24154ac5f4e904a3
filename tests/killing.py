"""A process that kills itself with SIGKILL just before or after a chosen write point.

    main([STORE, POINTS, [WHEN, POINT], "--", MODULE, ARGUMENTS...])

A write point is an operation that changes the store (replace, rename, link or remove a file) with the path that it
changes, without numbers: "replace runs/#/checkpoint-last"; on S3 it is a request that writes. All executed write points
are recorded in POINTS. This also works in worker processes, which start with `tests/armed` on their path.
"""

import importlib
import os
import re
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests import ROOT

REQUESTS = {
    "put_object", "copy_object", "delete_object", "delete_objects", "create_multipart_upload", "upload_part",
    "complete_multipart_upload",
}  # fmt: skip
"""The S3 operations that write."""

KILLED = "killed {} {}"
"""The line in POINTS for a killed process; a worker's death ends the whole run with another status."""

OPERATIONS = [(os, "replace"), (os, "rename"), (os, "link"), (os, "remove"), (os, "unlink"), (shutil, "rmtree")]


def arm(store: str, points: str, when: str, wanted: str) -> None:
    """Wrap every operation that writes to a store."""
    if store.startswith("s3://"):
        from s3fs import S3FileSystem  # takes a second to load, which each process of a local job would spend

        S3FileSystem._call_s3 = _wrapped_request(S3FileSystem._call_s3, store, points, when, wanted)
        return
    for module, name in OPERATIONS:
        setattr(module, name, _wrapped(getattr(module, name), name, store, points, when, wanted))


def name_point(operation: str, store: str, path: str) -> str:
    """A point's name: the operation and the path, without numbers and digests."""
    return f"{operation} {re.sub(r'[0-9a-f]{8,}|[0-9]+', '#', os.path.relpath(path, store))}"


def _wrapped(
    operation: Callable[..., Any], name: str, store: str, points: str, when: str, wanted: str
) -> Callable[..., Any]:
    def write(*arguments: Any, **options: Any) -> Any:
        target = arguments[1] if name in ("replace", "rename", "link") else arguments[0]
        if not isinstance(target, str | Path) or not str(target).startswith(f"{store}/"):
            return operation(*arguments, **options)
        with _passing(name_point(name, store, str(target)), points, when, wanted):
            return operation(*arguments, **options)

    return write


def _wrapped_request(
    request: Callable[..., Any], store: str, points: str, when: str, wanted: str
) -> Callable[..., Any]:
    async def write(self: Any, method: str, *arguments: Any, **options: Any) -> Any:
        given = {name: value for each in arguments for name, value in each.items()} | options
        if method not in REQUESTS:
            return await request(self, method, *arguments, **options)
        key = given.get("Key") or given["Delete"]["Objects"][0]["Key"]
        with _passing(name_point(method, store, f"s3://{given['Bucket']}/{key}"), points, when, wanted):
            return await request(self, method, *arguments, **options)

    return write


@contextmanager
def _passing(point: str, points: str, when: str, wanted: str) -> Iterator[None]:
    """Kill this process if the block's write point is the chosen one; record the point and the kill."""
    if when == "before" and point == wanted:
        _end(points, KILLED.format(when, point))
    yield
    _note(points, point)
    if when == "after" and point == wanted:
        _end(points, KILLED.format(when, point))


def _end(points: str, line: str) -> None:
    _note(points, line)
    os.kill(os.getpid(), signal.SIGKILL)


def _note(points: str, line: str) -> None:
    with open(points, "a", encoding="utf-8") as file:
        file.write(f"{line}\n")


def main(arguments: list[str]) -> int:
    """Wrap the operations and run the module's `main`."""
    ours, theirs = arguments[: arguments.index("--")], arguments[arguments.index("--") + 1 :]
    os.environ["KILLING"] = "\n".join([*ours, "", ""][:4])
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "tests" / "armed")])
    arm(*os.environ["KILLING"].split("\n"))
    status: int = importlib.import_module(theirs[0]).main(theirs[1:])
    return status
