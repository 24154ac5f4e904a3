"""Ranks as workers of Ray Train: where some are lost, all are started again, as many as there is room for.

A rank does what one under torchrun does. What it prints goes to the stage's output; a stop reaches it through the
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
from typing import Any, TextIO

from trainer.common.errors import EXIT_CRASHED, DeviceError, brief
from trainer.common.process import in_thread
from trainer.common.stopping import StopRequested, on_stop, stop_requested, stopping_when
from trainer.config.engines import RayEngine
from trainer.engines.executors import enter_group
from trainer.engines.ray_cluster import (
    WAITING_SECONDS,
    Cluster,
    Saying,
    Surroundings,
    has_gpus,
    joined,
    waiting_for_room,
)

log = logging.getLogger(__name__)

TAKE_SECONDS = 0.2
"""Between two looks for lines of the ranks."""

OTHERS_SECONDS = 30.0
"""That ranks are given to end by themselves when one has failed, as torchrun gives them."""

SETTINGS = {
    "RAY_CHDIR_TO_TRIAL_DIR": "0",  # relative paths stay what they are
    "RAY_TRAIN_ENABLE_PRINT_PATCH": "0",  # what ranks print goes to the stage's output
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",  # the end, or a lost rank, is noticed so much later at most
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "20",  # it may wait for a node that is lost, as it does not know that yet
}
"""Of Ray Train, which takes them from the environment."""

GONE_SECONDS = 15.0
"""Without a sign of life of any rank, while a stop is asked for: there is none that would save."""

STARTED = "ranks start: "
ERROR = '{"event": "error"'
"""How a line begins that tells the error of a rank."""


def carry_ranks(engine: RayEngine, device: str, most: int, work: Callable[[], int], out: TextIO) -> list[int]:
    """Have `work` done by as many ranks as there is room for, `most` at most; returns their statuses.

    Raises `DeviceError` if ranks were lost more often than `engine.max_failures` allows, or what they report to was,
    and `StopRequested` if none is there that could be asked to stop.
    """
    # A folder for checkpoints of Ray's own, of which there are none.
    with tempfile.TemporaryDirectory(prefix="headrace-") as kept, joined(engine) as cluster:
        gpus = has_gpus(cluster, device)
        training = in_thread(lambda: _fit(cluster, gpus, most, work, kept), "ray-train")
        with on_stop(lambda: cluster.actor.ask_to_stop.remote()):
            errors = _pass_on(cluster, training, out)
        statuses: list[int] = cluster.ray.get(cluster.actor.statuses.remote())
        _write(out, errors)
        try:
            training.result()
        except Exception as failure:
            if any(statuses) or errors:
                return statuses or [EXIT_CRASHED]
            raise DeviceError(
                f"ranks were lost, and started again {engine.max_failures} times: {brief(failure)}", transient=True
            ) from failure
        return statuses


def _fit(cluster: Cluster, gpus: bool, most: int, work: Callable[[], int], kept: str) -> None:
    """Run Ray Train to its end. In a thread: in the main one it would install a handler of its own.

    What is left of it when this process leaves the cluster ends with its next call: it must not join another cluster.
    """
    os.environ.update(SETTINGS)
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    engine, actor, group = cluster.engine, cluster.actor, cluster.group
    surroundings = cluster.surroundings

    def worker() -> int:
        return as_rank(work, surroundings, actor, group)

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
    """Pass on the lines of the ranks until they have ended; returns those that tell errors of the last start.

    What has ended an earlier start, like the connection to a lost rank, was not the end.
    """
    errors: list[str] = []
    told = False
    while True:
        ended = not wait([training], TAKE_SECONDS).not_done
        cluster.head.check()
        lines, silent = _news(cluster)
        if silent > GONE_SECONDS and stop_requested():
            raise StopRequested
        if silent > WAITING_SECONDS and not told:
            log.warning("%s", waiting_for_room(cluster, "rank"))
        told = silent > WAITING_SECONDS
        passed = []
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
                passed.append(line)
        _write(out, passed)
        if ended:
            return errors


def _write(out: TextIO, lines: list[str]) -> None:
    """Write lines for whoever waits for the stage. Where nobody does any more, the ranks are asked to stop, and may
    save.
    """
    with suppress(BrokenPipeError):
        out.writelines(f"{line}\n" for line in lines)
        out.flush()


def _news(cluster: Cluster) -> tuple[list[str], float]:
    """What the progress actor has. Raises `DeviceError` if it is lost: then nobody could tell the ranks to stop, or
    hear of them.
    """
    from ray.exceptions import RayError

    try:
        found: tuple[list[str], float] = cluster.ray.get(cluster.actor.take.remote())
    except RayError as error:
        raise DeviceError(
            f"the process of the cluster that ranks report to was lost: {brief(error)}", transient=True
        ) from error
    return found


def as_rank(work: Callable[[], int], surroundings: Surroundings, actor: Any, group: str) -> int:
    """Do a rank's work in a worker of Ray Train, and tell the progress actor how it ended. Returns its status.

    Raises if Ray must end the other ranks, and start all of them again.
    """
    import ray
    from ray.train import get_context
    from ray.train.collective import broadcast_from_rank_zero

    if any(ray.get(actor.statuses.remote())):
        return 0  # this start follows one that came to an end, which was not one to be repeated
    surroundings.enter()
    enter_group(group)
    rank, ranks = get_context().get_world_rank(), get_context().get_world_size()
    start = str(broadcast_from_rank_zero(time.time_ns()))
    said = Saying(actor)
    # Ray's, which write to files of its own; the work adds those that a rank has anywhere
    logging.root.handlers.clear()
    if rank == 0:
        said.write(f"{STARTED}{ranks} of the cluster's workers begin\n")
    with (
        redirect_stdout(said),
        redirect_stderr(said),
        stopping_when(lambda: bool(ray.get(actor.is_stopping.remote()))),
    ):
        status = work()
    if status == EXIT_CRASHED:
        raise RuntimeError(f"rank {rank} of {ranks} ended by an error of its own, or as another one was lost")
    ray.get(actor.end.remote(start, rank, status))
    latest = time.monotonic() + OTHERS_SECONDS
    while status and ray.get(actor.ended.remote(start)) < ranks:
        if time.monotonic() > latest:
            raise RuntimeError(f"rank {rank} of {ranks} ended with status {status}, and others go on")
        time.sleep(TAKE_SECONDS)
    return status
