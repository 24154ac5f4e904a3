"""What is unusual in a job's settings, though it may be meant: said before work starts, in the dry run and at a run's
start.
"""

import logging
from collections.abc import Iterator

import torch

from trainer.config.labelled import FinetuneTrainingConfig
from trainer.config.runs import RunJob
from trainer.config.training import OptimizationConfig
from trainer.training.runtime import count_gpus

log = logging.getLogger(__name__)

USUAL_RATES = {"adamw": (1e-5, 1e-2), "adafactor": (1e-5, 2e-2), "sgd": (1e-3, 1.0), "muon": (1e-5, 5e-2)}
"""Peak learning rates that models are trained with, by optimizer."""

USUAL_TUNING = (1e-6, 5e-3)
"""The same of what tunes a pretrained model; an adapter takes the higher ones. Of sgd it is that of training."""


def tell_cautions(job: RunJob, ranks: int) -> None:
    """Warn of each unusual setting."""
    for each in cautions(job.training, ranks):
        log.warning("%s", each)


def cautions(training: OptimizationConfig, ranks: int) -> Iterator[str]:
    """What is unusual, each with what is usual."""
    tuning = isinstance(training, FinetuneTrainingConfig) and training.optimizer != "sgd"
    usual = USUAL_TUNING if tuning else USUAL_RATES[training.optimizer]
    yield from _rate("training.learning_rate", training.learning_rate, training.optimizer, usual)
    if training.muon is not None and training.muon.learning_rate is not None:
        yield from _rate("training.muon.learning_rate", training.muon.learning_rate, "muon", USUAL_RATES["muon"])
    if training.sharding == "fsdp" and ranks == 1:
        yield (
            "training.sharding is fsdp with one process: nothing is divided, and steps take longer than with sharding: "
            "none; set training.processes to the number of GPUs, or training.sharding to none"
        )
    if training.precision == "bf16" and not count_gpus(training.device) and not _computes_bf16():
        yield (
            "training.precision is bf16, which this processor does not compute in: it is emulated, and slower than "
            "fp32; set training.precision to fp32 here"
        )


def _rate(name: str, rate: float, optimizer: str, usual: tuple[float, float]) -> Iterator[str]:
    least, most = usual
    if not least / 10 <= rate <= most * 10:
        what = "high: the loss will probably diverge" if rate > most else "low: little will be learnt"
        yield f"{name} is {rate:g}, which is {what}; with {optimizer}, {least:g} to {most:g} is usual"


def _computes_bf16() -> bool:
    """Whether this processor has instructions for products of bf16."""
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())
