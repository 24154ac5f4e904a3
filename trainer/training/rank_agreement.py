"""Checks that all ranks of a run agree: each machine has its own copy of the job, its own installation, and perhaps its
own copy of a pretrained model, of which each rank reads what it needs.
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
from trainer.models.hub import commits_taken, take_commits
from trainer.models.pretrained import digest_files
from trainer.records.fields import list_changes
from trainer.training.runtime import Runtime

T = TypeVar("T")


def require_consistent(job: RunJob, runtime: Runtime) -> None:
    """Raise `ConfigError` unless every rank has the same job and the same versions. Called by every rank.

    `require_shared` checks the store by its content, because machines may use different names for it.
    """
    packages = {name: found for name, found in versions().items() if name != "prefect"}  # ranks do not use prefect
    own = {
        "job": job.model_dump(mode="json", exclude={"store"}),
        "python": platform.python_version(),
        "packages": packages,
    }
    _compare(lambda: own, runtime, "use the same configuration and install the same versions on every machine")


def require_same_model(folder: str, runtime: Runtime) -> None:
    """Raise `ConfigError` unless every machine has the same files in the folder of a pretrained model. Called by every
    rank.

    The first rank of each machine reads them; rank 0 has already done so to identify the run.
    """
    reads = os.environ.get("LOCAL_RANK", "0") == "0"
    _compare(
        lambda: {"model.pretrained": _digests(folder)} if reads else None,
        runtime,
        "copy the same folder to every machine",
    )


def name_together(work: Callable[[], T], runtime: Runtime) -> T:
    """Identify a run by the model that it starts from: rank 0 does `work`, and the other ranks load models of the hub
    from the commits that it used. Called by every rank.
    """
    found, commits = runtime.on_first(lambda: (work(), commits_taken()))
    take_commits(commits)
    return found


def _digests(folder: str) -> dict[str, str]:
    return {name: sha256[:16] for name, sha256 in digest_files(Path(folder)).items()}


def _compare(work: Callable[[], dict[str, Any] | None], runtime: Runtime, remedy: str) -> None:
    """Raise `ConfigError` on every rank unless `work` returns the same on all; a rank returns None if it has nothing to
    compare.
    """
    answers = runtime.on_each(lambda: (socket.gethostname(), work()))
    runtime.on_first(lambda: _require_same(answers, remedy))


def _require_same(answers: list[tuple[str, dict[str, Any] | None]], remedy: str) -> None:
    host, first = answers[0]
    for rank, (other_host, other) in enumerate(answers):
        if other is not None and (changes := list_changes(first or {}, other)):
            raise ConfigError(
                f"{other_host} (rank {rank}) differs from {host} (rank 0): {'; '.join(changes)}; {remedy}"
            )
