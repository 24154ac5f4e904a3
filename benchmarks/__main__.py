"""`make bench`: run all benchmarks, or those given as arguments, each in a separate process."""

import os
import platform
import subprocess
import sys
from importlib.metadata import version

BENCHMARKS = [
    "tokenization", "training", "pipeline", "restart", "checkpoints", "s3", "operations", "compare", "memory", "scale",
    "curation", "goodput",
]  # fmt: skip
PACKAGES = ["torch", "transformers", "datasets", "tokenizers", "gigatoken", "prefect"]


def main(names: list[str]) -> int:
    """Print the versions, then each benchmark's figures; return 1 if a benchmark failed."""
    if unknown := set(names) - set(BENCHMARKS):
        print(f"unknown benchmark {', '.join(sorted(unknown))}; known are {', '.join(BENCHMARKS)}", file=sys.stderr)
        return 2
    print(
        f"Python {platform.python_version()}, {os.cpu_count()} cores; "
        + ", ".join(f"{p} {version(p)}" for p in PACKAGES)
    )
    failed = [
        name
        for name in names or BENCHMARKS
        if subprocess.run([sys.executable, "-m", f"benchmarks.{name}"], check=False).returncode
    ]
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
