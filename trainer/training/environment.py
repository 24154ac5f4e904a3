"""What a run ran on: versions and the machine."""

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

PACKAGES = [
    "headrace", "torch", "transformers", "tokenizers", "gigatoken", "accelerate", "safetensors", "numpy", "fsspec", "prefect",
]  # fmt: skip


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


def versions() -> dict[str, str]:
    """The versions of those packages that are installed."""
    return {name: found for name in PACKAGES if (found := _version(name)) is not None}


def _version(package: str) -> str | None:
    """A package's version; None where it is not installed, as Prefect need not be on a machine that only trains."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None
