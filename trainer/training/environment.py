"""What a run ran on: versions and the machine."""

import os
import platform
from typing import Any

import torch

from trainer.common.process import versions


def describe_environment(device: torch.device, ranks: int, precision: str) -> dict[str, Any]:
    """Versions of the packages that decide a run's outcome, and the devices that it used."""
    return {
        "python": platform.python_version(),
        "platform": platform.platform(terse=True),
        "packages": versions(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU, {os.cpu_count()} cores",
        "threads": torch.get_num_threads(),
        "ranks": ranks,
        "precision": precision,
    }
