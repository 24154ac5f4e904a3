"""`python -m tests.machines`: create two machines in network namespaces, and run this folder's tests. Needs root."""

import os
import subprocess
import sys

from tests.machines.network import HUB, network


def main(arguments: list[str]) -> int:
    """Run pytest in the hub of a new network; return its exit status."""
    with network() as hub:
        tests = [sys.executable, "-m", "pytest", "-m", "machines", "tests/machines", *arguments]
        return subprocess.run(
            ["ip", "netns", "exec", hub, *tests], env={**os.environ, HUB: hub}, check=False
        ).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
