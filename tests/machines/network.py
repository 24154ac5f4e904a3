"""A separate network: a hub with the tests and the server, and two machines, each in a namespace."""

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

HUB_ADDRESS = "10.77.0.1"
HUB = "HEADRACE_TEST_HUB"
"""The environment variable with the namespace's name, for processes in the hub."""

ON_MACHINE = 'mount -t tmpfs -o "size=$3" machine "$1" && hostname "$2" && shift 3 && cd "$HOME" && exec "$@"'
"""The first commands of a process on a machine: they give it an empty, private home."""


class Machine(NamedTuple):
    """A machine: its number and its network's namespace."""

    number: int
    namespace: str

    @property
    def address(self) -> str:
        return f"10.77.0.{10 + self.number}"

    def command(self, home: str, command: Sequence[str], disk: str) -> list[str]:
        """The command line for a command on this machine with a disk of a size; it keeps the process id."""
        own = ["unshare", "--mount", "--uts", "sh", "-c", ON_MACHINE, "sh", home, f"machine-{self.number}", disk]
        return ["ip", "netns", "exec", self.namespace, *own, *command]


def machines() -> list[Machine]:
    """The machines reachable from this process, which runs in the hub."""
    return _machines(os.environ[HUB])


def _machines(hub: str) -> list[Machine]:
    return [Machine(number, f"{hub}-{number}") for number in (0, 1)]


@contextmanager
def network() -> Iterator[str]:
    """Create the network during the block; yield the hub's namespace."""
    hub = f"headrace-{os.getpid()}"
    names = [hub, *(machine.namespace for machine in _machines(hub))]
    try:
        for name in names:
            _ip("netns", "add", name)
            _ip("-n", name, "link", "set", "lo", "up")
        _ip("-n", hub, "link", "add", "bridge0", "type", "bridge")
        _ip("-n", hub, "address", "add", f"{HUB_ADDRESS}/24", "dev", "bridge0")
        _ip("-n", hub, "link", "set", "bridge0", "up")
        for machine in _machines(hub):
            port, name = f"port{machine.number}", machine.namespace
            _ip("-n", hub, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", name)
            _ip("-n", hub, "link", "set", port, "master", "bridge0", "up")
            _ip("-n", name, "address", "add", f"{machine.address}/24", "dev", "eth0")
            _ip("-n", name, "link", "set", "eth0", "up")
        yield hub
    finally:
        for name in reversed(names):
            subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)


@contextmanager
def unplugged(machine: Machine) -> Iterator[None]:
    """Disconnect a machine from the hub during the block; packets are lost silently."""
    _ip("link", "set", f"port{machine.number}", "nomaster")
    try:
        yield
    finally:
        _ip("link", "set", f"port{machine.number}", "master", "bridge0")


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)
