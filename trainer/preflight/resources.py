"""Checks of a training job's devices, batches, schedule and disk space, and warnings about unusual settings."""

import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping

import torch

from trainer.common.display import size
from trainer.common.errors import ConfigError, StorageError
from trainer.config.engines import RayEngine
from trainer.config.evaluation import PREFIX, SelectionConfig
from trainer.config.labelled import FinetuneTrainingConfig
from trainer.config.runs import RunJob
from trainer.config.training import OptimizationConfig
from trainer.data.step_plan import check_patience, divide_batch
from trainer.evaluation.builtin_metrics import AT_MOST_ONE
from trainer.evaluation.metrics import METRICS, greater_is_better
from trainer.models.quantized import check_installed
from trainer.store.checked_files import FOLDER, machine_cache
from trainer.store.storage import Store
from trainer.training.runtime import check_devices, count_gpus, planned_ranks
from trainer.training.schedules import make_schedule
from trainer.training.step import FLOAT_BYTES
from trainer.training.tracking import check_trackers

log = logging.getLogger(__name__)


def require_room(
    store: Store, needs: Mapping[str, int], present: Callable[[str], int], trained: int, checkpoint: int
) -> None:
    """Raise `StorageError` if a disk lacks space for a job in folders of the store, which may be links to other disks,
    or this machine's disk for a checkpoint of a remote store, of `checkpoint` bytes.

    `present` returns the bytes that a folder already holds from an earlier start of the same job.
    """
    disks: dict[int, list[str]] = {}
    for folder in needs:
        if (disk := store.disk_of(folder)) is not None:
            disks.setdefault(disk, []).append(folder)
    for folders in disks.values():
        free, needed = store.free_bytes(folders[0]) or 0, sum(needs[folder] for folder in folders)
        if needed <= free:
            continue
        left = sum(max(0, needs[folder] - present(folder)) for folder in folders)
        if left > free:
            place = (
                " and ".join(store.path(folder) for folder in folders) if len(folders) < len(needs) else store.path("")
            )
            raise StorageError(
                f"the job needs about {size(left)} on {place}, which has {size(free)} free, for the checkpoints of "
                f"{trained:,} trained parameters; use a smaller model, free some space, or keep fewer checkpoints "
                "(training.keep_last, training.keep_epochs)"
            )
    require_checkpoint_room(store, checkpoint)


def require_checkpoint_room(store: Store, needed: int) -> None:
    """Raise `StorageError` if this machine's disk lacks space for a checkpoint of a remote store, of `needed` bytes.

    Checkpoints are written locally before they are sent, and fetched, whatever the cache's limit, to continue training.
    """
    room = store.fetched_room()  # for all parts of a sharded model, on each machine
    if room is not None and needed > room:
        raise StorageError(
            f"a checkpoint of this model takes about {size(needed)} on this machine, where it is written before it is "
            f"sent to {store.url} and fetched when training continues; the disk of {machine_cache()} has {size(room)} "
            f"free. Free some space there, or set {FOLDER} to a folder on a larger disk"
        )


def check_optimization(job: RunJob) -> int:
    """Check packages, devices, batches, schedule and deciding metrics, without the data; warn about unusual settings.

    Returns the number of ranks, in a cluster the maximum.
    """
    training = job.training
    _check_direction(job)
    _check_threshold(job)
    check_trackers(job.tracking)
    check_installed(getattr(job.model, "quantize", None))
    fewest, most = _plan_ranks(job)
    for ranks in range(fewest, most + 1):
        divide_batch(training, ranks)
    if training.epochs is not None and not job.judged_every:  # otherwise it depends on the data
        check_patience(job, steps_per_epoch=1, total_steps=training.epochs)
    make_schedule(torch.optim.SGD([torch.zeros(1)]), training, training.max_steps or 1)
    for each in cautions(training, most):
        log.warning("%s", each)
    return most


def _check_direction(job: RunJob) -> None:
    """Raise `ConfigError` if a greater metric is better for the choice of the checkpoint but worse for the gate."""
    gate, chosen = job.promotion, job.evaluation
    if gate is None or not isinstance(chosen, SelectionConfig) or gate.metric != chosen.best_by:
        return
    for_choice, for_gate = (greater_is_better(gate.metric, each.greater_is_better) for each in (chosen, gate))
    if for_choice != for_gate:
        raise ConfigError(
            f"evaluation.best_by and promotion.metric are both {gate.metric!r}, but by name or setting a "
            f"{'greater' if for_choice else 'smaller'} value is better for the first, and a "
            f"{'greater' if for_gate else 'smaller'} one for the second: set greater_is_better in both"
        )


def _check_threshold(job: RunJob) -> None:
    """Raise `ConfigError` for a gate in percent. Modules by path may measure in percent."""
    gate, own = job.promotion, {*(getattr(job.evaluation, "metrics", None) or [])} - METRICS.keys()
    if gate is None or own:
        return
    if gate.metric not in AT_MOST_ONE and not re.fullmatch(f"{PREFIX}.*/acc(_norm)?", gate.metric):
        return
    if gate.threshold is not None and gate.threshold > 1:
        name, value = "threshold", gate.threshold
    elif gate.better_by is not None and gate.better_by >= 1:
        name, value = "better_by", gate.better_by
    else:
        return
    remedy = f": set {value / 100:g} for {value:g} %" if value <= 100 else ""
    raise ConfigError(f"promotion.{name} is {value:.15g}, but {gate.metric} is at most 1{remedy}")


def _plan_ranks(job: RunJob) -> tuple[int, int]:
    """The minimum and maximum number of ranks, equal on this machine; checks the nodes of the job's cluster."""
    training = job.training
    if isinstance(job.engine, RayEngine):
        from trainer.engines.consistency import consistent_nodes
        from trainer.engines.ray_cluster import joined, plan_ranks

        with joined(job.engine) as cluster, consistent_nodes(cluster, Store(job.store)):
            return plan_ranks(cluster, training.processes, training.device, training.precision)
    check_devices(training.precision, training.processes, training.device)
    ranks = int(os.environ.get("WORLD_SIZE", "0")) or planned_ranks(training.processes, training.device)
    return ranks, ranks


def final_parameters(job: RunJob, trained: int, parameters: int) -> int:
    """Number of parameters in the final model's folder."""
    return trained if job.model.lora is not None and job.model.lora.publish == "adapter" else parameters


def run_bytes(training: OptimizationConfig, checkpoint: int, steps: int | None, epochs: int, final: int) -> int:
    """Bytes of the checkpoints kept simultaneously (the last, the best, those of epochs, and one being written), of
    which there is at most one per step if `steps` is known, and of the final model with its `final` parameters in
    float32.
    """
    of_epochs = epochs if training.keep_epochs is None else min(epochs, training.keep_epochs)
    most = training.keep_last + 2 + of_epochs
    return min(most, steps or most) * checkpoint + FLOAT_BYTES * final


USUAL_RATES = {"adamw": (1e-5, 1e-2), "adafactor": (1e-5, 2e-2), "sgd": (1e-3, 1.0), "muon": (1e-5, 5e-2)}
"""Usual peak learning rates by optimizer."""

USUAL_TUNING = (1e-6, 5e-3)
"""Usual peak learning rates for tuning a pretrained model, the higher ones for adapters; not used for sgd."""


def cautions(training: OptimizationConfig, ranks: int) -> Iterator[str]:
    """Yield a warning for each unusual setting, with the usual values."""
    tuning = isinstance(training, FinetuneTrainingConfig) and training.optimizer != "sgd"
    usual = USUAL_TUNING if tuning else USUAL_RATES[training.optimizer]
    yield from _rate("training.learning_rate", training.learning_rate, training.optimizer, usual)
    if training.muon is not None and training.muon.learning_rate is not None:
        yield from _rate("training.muon.learning_rate", training.muon.learning_rate, "muon", USUAL_RATES["muon"])
    if training.sharding == "fsdp" and ranks == 1:
        yield (
            "training.sharding is fsdp with one process: nothing is sharded, and steps take longer than with sharding: "
            "none; set training.processes to the number of GPUs, or training.sharding to none"
        )
    has_bf16 = (
        torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    )  # instructions for matrix products
    if training.precision == "bf16" and not count_gpus(training.device) and not has_bf16:
        yield (
            "training.precision is bf16, which this processor does not support: it is emulated and slower than fp32; "
            "set training.precision to fp32"
        )


def _rate(name: str, rate: float, optimizer: str, usual: tuple[float, float]) -> Iterator[str]:
    least, most = usual
    if not least / 10 <= rate <= most * 10:
        what = "high: the loss will probably diverge" if rate > most else "low: the model will learn little"
        yield f"{name} is {rate:g}, which is {what}; with {optimizer}, {least:g} to {most:g} is usual"
