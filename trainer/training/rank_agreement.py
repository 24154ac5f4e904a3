"""Whether all ranks of a run do the same: each machine has a copy of the job, and an installation, of its own.

It may have another copy of a pretrained model, too, of which each rank reads what it needs.
"""

import os
import platform
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from trainer.common.errors import ConfigError
from trainer.common.process import versions
from trainer.config.runs import RunJob
from trainer.models.pretrained import commits_taken, digest_files, take_commits
from trainer.records.fields import tell_changes
from trainer.training.runtime import Runtime

T = TypeVar("T")


def require_consistent(job: RunJob, runtime: Runtime) -> None:
    """Raise `ConfigError` unless every rank has the same job and the same versions. Called by every rank.

    That the store is the same is seen by what is in it (`require_shared`), whatever each machine calls it.
    """
    packages = {name: found for name, found in versions().items() if name != "prefect"}  # which ranks do not use
    own = {
        "job": job.model_dump(mode="json", exclude={"store"}),
        "python": platform.python_version(),
        "packages": packages,
    }
    _compare(lambda: own, runtime, "give every machine the same configuration, and install the same versions there")


def require_same_model(folder: str, runtime: Runtime) -> None:
    """Raise `ConfigError` unless every machine has the same files in the folder of a pretrained model. Called by every
    rank.

    The first rank of each machine reads them, while the very first has done so to name the run.
    """
    reads = os.environ.get("LOCAL_RANK", "0") == "0"
    _compare(
        lambda: {"model.pretrained": _digests(folder)} if reads else None,
        runtime,
        "copy the same folder to every machine",
    )


def name_together(work: Callable[[], T], runtime: Runtime) -> T:
    """What names a run by the model that it begins with, found by the first rank: the others load models of the hub
    from the commits that it has taken. Called by every rank.
    """
    found, commits = runtime.on_first(lambda: (work(), commits_taken()))
    take_commits(commits)
    return found


def _digests(folder: str) -> dict[str, str]:
    return {name: sha256[:16] for name, sha256 in digest_files(Path(folder)).items()}


def _compare(work: Callable[[], dict[str, Any] | None], runtime: Runtime, remedy: str) -> None:
    """Raise `ConfigError` on every rank unless this gives the same on each; None for one that has nothing to
    compare.
    """
    said = runtime.on_each(lambda: (socket.gethostname(), work()))
    runtime.on_first(lambda: _require_same(said, remedy))


def _require_same(said: list[tuple[str, dict[str, Any] | None]], remedy: str) -> None:
    host, first = said[0]
    for rank, (other_host, other) in enumerate(said):
        if other is not None and (changes := tell_changes(first or {}, other)):
            raise ConfigError(
                f"{other_host} (rank {rank}) differs from {host} (rank 0): {'; '.join(changes)}; {remedy}"
            )
