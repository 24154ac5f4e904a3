"""A process that ends itself with SIGKILL just before or after a chosen write point.

    main([STORE, POINTS, [WHEN, POINT], "--", MODULE, ARGUMENTS...])

A write point is an operation that changes what the store holds (a file put in place, renamed, linked or removed) and the
place that it changes, with numbers left out: "replace runs/#/checkpoint-last". All that are passed are noted in POINTS. It
holds for the worker processes too, which start with `tests/armed` on their path.
"""

import importlib
import os
import re
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support import ROOT

OPERATIONS = [(os, "replace"), (os, "rename"), (os, "link"), (os, "remove"), (os, "unlink"), (shutil, "rmtree")]


def arm(store: str, points: str, when: str, wanted: str) -> None:
    """Wrap every operation that writes to a store."""
    for module, name in OPERATIONS:
        setattr(module, name, _wrapped(getattr(module, name), name, store, points, when, wanted))


def name_point(operation: str, store: str, path: str) -> str:
    """What a point is called: the operation and the place, without numbers and digests."""
    return f"{operation} {re.sub(r'[0-9a-f]{8,}|[0-9]+', '#', os.path.relpath(path, store))}"


def _wrapped(operation: Callable[..., Any], name: str, store: str, points: str, when: str, wanted: str) -> Callable[..., Any]:
    def write(*arguments: Any, **options: Any) -> Any:
        target = arguments[1] if name in ("replace", "rename", "link") else arguments[0]
        if not isinstance(target, str | Path) or not str(target).startswith(f"{store}/"):
            return operation(*arguments, **options)
        point = name_point(name, store, str(target))
        with open(points, "a", encoding="utf-8") as file:
            file.write(f"{point}\n")
        if when == "before" and point == wanted:
            os.kill(os.getpid(), signal.SIGKILL)
        result = operation(*arguments, **options)
        if when == "after" and point == wanted:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    return write


def main(arguments: list[str]) -> int:
    """Arm, and run the module's `main`."""
    ours, theirs = arguments[: arguments.index("--")], arguments[arguments.index("--") + 1 :]
    os.environ["KILLING"] = "\n".join([*ours, "", ""][:4])
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "tests" / "armed")])
    arm(*os.environ["KILLING"].split("\n"))
    status: int = importlib.import_module(theirs[0]).main(theirs[1:])
    return status
