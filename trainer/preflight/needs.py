"""What training needs whatever its kind: devices, batches and a schedule that fit, and bytes for what is kept."""

import os

import torch

from trainer.config.engines import RayEngine
from trainer.config.training import OptimizationConfig
from trainer.data.step_plan import check_patience, divide_batch
from trainer.preflight.cautions import tell_cautions
from trainer.store.storage import Store
from trainer.training.identity import TrainingJob
from trainer.training.runtime import check_devices, planned_ranks
from trainer.training.step import make_schedule
from trainer.training.tracking import check_trackers


def check_optimization(job: TrainingJob) -> int:
    """Check trackers, devices, batches and schedule, without the data, and warn of what is unusual.

    Returns the number of ranks, of a cluster the most.
    """
    training = job.training
    check_trackers(job.tracking)
    fewest, most = _plan_ranks(job)
    for ranks in range(fewest, most + 1):
        divide_batch(training, ranks)
    if training.epochs is not None and training.evaluate_every is None:  # else it depends on the data
        check_patience(training, steps_per_epoch=1, total_steps=training.epochs)
    make_schedule(torch.optim.SGD([torch.zeros(1)]), training, training.max_steps or 1)
    tell_cautions(job, most)
    return most


def _plan_ranks(job: TrainingJob) -> tuple[int, int]:
    """The fewest and the most ranks: on this machine they are the same. The nodes of the job's cluster are looked at."""
    training = job.training
    if isinstance(job.engine, RayEngine):
        from trainer.engines.consistency import nodes_alike
        from trainer.engines.ray_cluster import joined, plan_ranks

        with joined(job.engine) as cluster, nodes_alike(cluster, Store(job.store)):
            return plan_ranks(cluster, training.processes, training.device, training.precision)
    check_devices(training.precision, training.processes, training.device)
    ranks = int(os.environ.get("WORLD_SIZE", "0")) or planned_ranks(training.processes, training.device)
    return ranks, ranks


def checkpoint_bytes(trained: int) -> int:
    """A checkpoint: weights that are trained, and Adam's two means, in float32."""
    return 12 * trained


def final_parameters(job: TrainingJob, trained: int, parameters: int) -> int:
    """The parameters that the final model's folder holds."""
    return trained if job.model.lora is not None and job.model.lora.publish == "adapter" else parameters


def run_bytes(training: OptimizationConfig, trained: int, epochs: int, final: int) -> int:
    """The checkpoints kept at the same time (the last, the best, those of epochs, one more while it is written), and the final
    model's parameters in float32.
    """
    of_epochs = epochs if training.keep_epochs is None else min(epochs, training.keep_epochs)
    return (training.keep_last + 2 + of_epochs) * checkpoint_bytes(trained) + 4 * final
