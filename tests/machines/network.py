"""A network of its own: a hub, where tests and the server are, and two machines, each in a namespace."""

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

HUB_ADDRESS = "10.77.0.1"
HUB = "HEADRACE_TEST_HUB"
"""In the environment of what runs in the hub: the namespace's name."""

ON_MACHINE = 'mount -t tmpfs -o "size=$3" machine "$1" && hostname "$2" && shift 3 && cd "$HOME" && exec "$@"'
"""What a process on a machine does first: its home is empty, and nobody else sees it."""


class Machine(NamedTuple):
    """One of the machines: its number, and the namespace that its network is in."""

    number: int
    namespace: str

    @property
    def address(self) -> str:
        return f"10.77.0.{10 + self.number}"

    def command(self, home: str, command: Sequence[str], disk: str) -> list[str]:
        """A command as it is started on this machine, with a disk of a size; its process id stays that of the first
        program.
        """
        own = ["unshare", "--mount", "--uts", "sh", "-c", ON_MACHINE, "sh", home, f"machine-{self.number}", disk]
        return ["ip", "netns", "exec", self.namespace, *own, *command]


def machines() -> list[Machine]:
    """The machines that can be reached from this process, which runs in the hub."""
    return _machines(os.environ[HUB])


def _machines(hub: str) -> list[Machine]:
    return [Machine(number, f"{hub}-{number}") for number in (0, 1)]


@contextmanager
def network() -> Iterator[str]:
    """Make the network for the length of a block; yields the hub's namespace."""
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
    """Take a machine's cable out of the hub for the length of a block: what is sent is lost, and nobody is told."""
    _ip("link", "set", f"port{machine.number}", "nomaster")
    try:
        yield
    finally:
        _ip("link", "set", f"port{machine.number}", "master", "bridge0")


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)
