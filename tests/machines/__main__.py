"""`python -m tests.machines`: make two machines in network namespaces, and run the tests of this folder beside them.

Only root can.
"""

import os
import subprocess
import sys

from tests.machines.network import HUB, network


def main(arguments: list[str]) -> int:
    """Run pytest in the hub of a new network; returns its exit status."""
    with network() as hub:
        tests = [sys.executable, "-m", "pytest", "-m", "machines", "tests/machines", *arguments]
        return subprocess.run(
            ["ip", "netns", "exec", hub, *tests], env={**os.environ, HUB: hub}, check=False
        ).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
