"""Ranks as workers of Ray Train: if some are lost, all are restarted, as many as the cluster can run.

A rank does the same as under torchrun. Its output goes to the stage's output; stop requests reach it through the
progress actor.
"""

import json
import logging
import os
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import redirect_stderr, redirect_stdout, suppress
from functools import partial
from typing import Any, TextIO

from trainer.common.errors import EXIT_CRASHED, DeviceError, brief
from trainer.common.process import in_thread
from trainer.common.stopping import StopRequested, on_stop, stop_requested, stopping_when
from trainer.config.engines import RayEngine
from trainer.engines.consistency import Versions, own_versions
from trainer.engines.executors import enter_group
from trainer.engines.ray_cluster import (
    WAITING_SECONDS,
    ActorOutput,
    Cluster,
    Surroundings,
    has_gpus,
    joined,
    waiting_for_room,
)

log = logging.getLogger(__name__)

TAKE_SECONDS = 0.2
"""Seconds between two reads of the ranks' lines."""

OTHERS_SECONDS = 30.0
"""Seconds that other ranks have to end after one has failed; the same as with torchrun."""

SETTINGS = {
    "RAY_CHDIR_TO_TRIAL_DIR": "0",  # keep relative paths valid
    "RAY_TRAIN_ENABLE_PRINT_PATCH": "0",  # the ranks' output goes to the stage's output
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",  # the longest delay until the end or a lost rank is noticed
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "20",  # bounds the wait for a node whose loss Ray has not noticed yet
}
"""Settings of Ray Train, which reads them from the environment."""

GONE_SECONDS = 15.0
"""After a stop request, seconds without any contact from ranks until they are considered lost: none will save."""

STARTED = "ranks start: "
ERROR = '{"event": "error"'
"""The beginning of a line with the error of a rank."""


Work = Callable[[Versions], int]
"""What a rank does; it is called with the versions of the stage's machine, and returns the rank's exit status."""


def carry_ranks(engine: RayEngine, device: str, most: int, work: Work, out: TextIO) -> list[int]:
    """Run `work` in as many ranks as the cluster can run, at most `most`; returns their exit statuses.

    Raises `DeviceError` if ranks were lost more often than `engine.max_failures` allows, or if the progress actor was
    lost, and `StopRequested` if a stop is requested and no rank responds.
    """
    # Ray requires a folder for its own checkpoints; none are written.
    with tempfile.TemporaryDirectory(prefix="headrace-") as kept, joined(engine) as cluster:
        gpus = has_gpus(cluster, device)
        training = in_thread(lambda: _fit(cluster, gpus, most, work, kept), "ray-train")
        with on_stop(lambda: cluster.actor.ask_to_stop.remote()):
            errors = _pass_on(cluster, training, out)
        statuses: list[int] = cluster.ask_actor("statuses")
        _write(out, errors)
        try:
            training.result()
        except Exception as failure:
            if any(statuses) or errors:
                return statuses or [EXIT_CRASHED]
            raise DeviceError(
                f"ranks were lost and restarted {engine.max_failures} times: {brief(failure)}", transient=True
            ) from failure
        return statuses


def _fit(cluster: Cluster, gpus: bool, most: int, work: Work, kept: str) -> None:
    """Run Ray Train to its end. It runs in a thread: in the main thread it would install its own signal handler.

    If this process leaves the cluster first, the thread ends at its next call to Ray: it cannot join another cluster.
    """
    os.environ.update(SETTINGS)
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    engine, actor, group = cluster.engine, cluster.actor, cluster.group
    surroundings, rank = cluster.surroundings, partial(work, own_versions())

    def worker() -> int:
        return as_rank(rank, surroundings, actor, group)

    fewest = min(engine.min_workers or most, most)
    TorchTrainer(
        worker,
        scaling_config=ScalingConfig(
            num_workers=most if fewest == most else (fewest, most),
            use_gpu=gpus,
            resources_per_worker={"CPU": engine.cpus_per_worker, **({"GPU": 1} if gpus else {})},
            elastic_resize_monitor_interval_s=engine.resize_seconds,
        ),
        run_config=RunConfig(name="headrace", storage_path=kept, failure_config=FailureConfig(engine.max_failures)),
    ).fit()


def _pass_on(cluster: Cluster, training: "Future[None]", out: TextIO) -> list[str]:
    """Write the ranks' lines to `out` until they have ended; returns the error lines of the last start.

    Errors of an earlier start, such as a lost connection to a rank, are logged as warnings.
    """
    errors: list[str] = []
    warned = False
    while True:
        ended = not wait([training], TAKE_SECONDS).not_done
        cluster.head.check()
        lines, silent = cluster.ask_actor("take")
        if silent > GONE_SECONDS and stop_requested():
            raise StopRequested
        if silent > WAITING_SECONDS and not warned:
            log.warning("%s", waiting_for_room(cluster, "rank"))
        warned = silent > WAITING_SECONDS
        printed = []
        for line in lines:
            if line.startswith(STARTED):
                for earlier in errors:
                    error = json.loads(earlier)
                    log.warning("[rank %d] %s: %s", error["rank"], error["kind"], error["message"])
                errors = []
                log.info("%s", line.removeprefix(STARTED))
            elif line.startswith(ERROR):
                errors.append(line)
            else:
                printed.append(line)
        _write(out, printed)
        if ended:
            return errors


def _write(out: TextIO, lines: list[str]) -> None:
    """Write lines to the stage's output. If its reader is gone, continue: the ranks are asked to stop and may save."""
    with suppress(BrokenPipeError):
        out.writelines(f"{line}\n" for line in lines)
        out.flush()


def as_rank(work: Callable[[], int], surroundings: Surroundings, actor: Any, group: str) -> int:
    """Do a rank's work in a worker of Ray Train, and report its exit status to the progress actor.

    Raises if Ray must end the other ranks and restart all of them.
    """
    import ray
    from ray.train import get_context
    from ray.train.collective import broadcast_from_rank_zero

    if any(ray.get(actor.statuses.remote())):
        return 0  # an earlier start has ended with an error that must not be retried
    surroundings.enter()
    enter_group(group)
    rank, ranks = get_context().get_world_rank(), get_context().get_world_size()
    start = str(broadcast_from_rank_zero(time.time_ns()))
    output = ActorOutput(actor)
    # Ray's handlers write to Ray's own files; `work` adds the handlers that a rank always has.
    logging.root.handlers.clear()
    if rank == 0:
        output.write(f"{STARTED}{ranks} of the cluster's workers start\n")
    with (
        redirect_stdout(output),
        redirect_stderr(output),
        stopping_when(lambda: bool(ray.get(actor.is_stopping.remote()))),
    ):
        status = work()
    if status == EXIT_CRASHED:
        raise RuntimeError(f"rank {rank} of {ranks} crashed, or ended because another rank was lost")
    ray.get(actor.end.remote(start, rank, status))
    latest = time.monotonic() + OTHERS_SECONDS
    while status and ray.get(actor.ended.remote(start)) < ranks:
        if time.monotonic() > latest:
            raise RuntimeError(f"rank {rank} of {ranks} ended with status {status} while other ranks continue")
        time.sleep(TAKE_SECONDS)
    return status
