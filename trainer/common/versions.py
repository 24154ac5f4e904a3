"""Versions of the packages that decide what comes out of a run."""

from importlib.metadata import PackageNotFoundError, version

PACKAGES = [
    "headrace", "torch", "transformers", "tokenizers", "gigatoken", "accelerate", "peft", "safetensors", "numpy", "fsspec",
    "prefect",
]  # fmt: skip


def versions() -> dict[str, str]:
    """The versions of those packages that are installed."""
    return {name: found for name in PACKAGES if (found := _version(name)) is not None}


def _version(package: str) -> str | None:
    """A package's version; None where it is not installed, as Prefect need not be on a machine that only trains."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None
