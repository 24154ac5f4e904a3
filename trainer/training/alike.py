"""Whether all ranks of a run do the same: each machine has a copy of the job, and an installation, of its own."""

import platform
import socket
from typing import Any

import torch.distributed as dist

from trainer.common.errors import ConfigError
from trainer.common.versions import versions
from trainer.records.fields import tell_changes
from trainer.runs.run import TrainingJob
from trainer.training.runtime import Runtime


def require_alike(job: TrainingJob, runtime: Runtime) -> None:
    """Raise `ConfigError` unless every rank has the same job and the same versions. Called by every rank.

    That the store is the same is seen by what is in it (`require_shared`), whatever each machine calls it.
    """
    if runtime.ranks == 1:
        return
    packages = {name: found for name, found in versions().items() if name != "prefect"}  # which ranks do not use
    own = {"job": job.model_dump(mode="json", exclude={"store"}), "python": platform.python_version(), "packages": packages}
    said: list[Any] = [None] * runtime.ranks
    dist.all_gather_object(said, (socket.gethostname(), own), group=runtime.control)
    runtime.on_first(lambda: _compare(said))


def _compare(said: list[tuple[str, dict[str, Any]]]) -> None:
    host, first = said[0]
    for rank, (other_host, other) in enumerate(said):
        if changes := tell_changes(first, other):
            raise ConfigError(
                f"{other_host} (rank {rank}) differs from {host} (rank 0): {'; '.join(changes)}; give every machine the same "
                "configuration, and install the same versions there"
            )
