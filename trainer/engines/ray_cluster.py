"""Joining a Ray cluster, of which this machine is a node, for the length of a block."""

import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple, TypeVar

from trainer.common.errors import ConfigError, DeviceError, brief
from trainer.common.stopping import StopRequested, stop_requested
from trainer.config.engines import CLIENT, RayEngine
from trainer.engines.desk import Desk
from trainer.engines.groups import NAMESPACE, group_name

T = TypeVar("T")

CONNECT_SECONDS = 10.0
ASK_SECONDS, HEAD_SECONDS = 2.0, 20.0
LOOK_SECONDS = 0.2
"""Between two looks whether a stop was asked for."""
PASSED_ON = ("AWS_", "HF_TOKEN", "HF_ENDPOINT", "HF_HUB_OFFLINE", "HEADRACE_PATIENCE", "OMP_NUM_THREADS")
"""Beginnings of the names of what a stage's environment says to its processes on other nodes too."""


class Surroundings(NamedTuple):
    """What a process on this machine inherits from the stage, and one on another node is told: its folder, and variables."""

    folder: str
    environment: dict[str, str]

    def enter(self) -> None:
        """Take them on. A folder that there is not leaves relative paths to be refused where they are used."""
        with suppress(OSError):
            os.chdir(self.folder)
        os.environ.update(self.environment)


class Head:
    """Whether a cluster's head answers. When it has not for a minute, Ray ends this process, with a word of its own."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._asked = self._heard = time.monotonic()

    def check(self) -> None:
        """Raise `DeviceError` if it has not answered for `HEAD_SECONDS`. Asks it at times, however often this is called."""
        if time.monotonic() - self._asked < ASK_SECONDS:
            return
        host, _, port = self._address.rpartition(":")
        try:
            socket.create_connection((host, int(port)), ASK_SECONDS).close()
            self._heard = time.monotonic()
        except OSError as error:
            if time.monotonic() - self._heard > HEAD_SECONDS:
                raise DeviceError(
                    f"the head of the Ray cluster at {self._address} does not answer any more ({error.strerror or error}); "
                    "start the cluster again: the same command continues",
                    passes=True,
                ) from error
        self._asked = time.monotonic()


class Cluster(NamedTuple):
    """A cluster that was joined."""

    engine: RayEngine
    ray: Any
    head: Head
    desk: Any
    group: str
    surroundings: Surroundings

    def nodes(self) -> list[dict[str, Any]]:
        """The nodes that live, as Ray describes them."""
        return [node for node in self.ray.nodes() if node["Alive"]]


@contextmanager
def joined(engine: RayEngine) -> Iterator[Cluster]:
    """Join the cluster; leaving it ends all that this process has running there.

    Ray joins in a thread: in the main one it would put a handler of its own for SIGTERM, which ends the process.

    Raises `ConfigError` if Ray is not installed, `DeviceError` if there is no such cluster or it is of other versions.
    """
    ray = _ray()
    address = _address(engine)
    joining = in_thread(lambda: ray.init(address, namespace=NAMESPACE, log_to_driver=False, logging_level="ERROR"), "ray-init")
    while not wait([joining], LOOK_SECONDS).done:
        if stop_requested():
            raise StopRequested
    try:
        joining.result()
    except ConnectionError as error:
        raise DeviceError(
            f"engine.address is {engine.address!r}, but no Ray cluster runs on this machine; start one (`ray start --head`), "
            "join one (`ray start --address HOST:PORT`), or give its address"
        ) from error
    except Exception as error:  # Ray has no classes of errors for what hinders joining
        raise _refusal(engine, error) from error
    try:
        yield _with_desk(ray, engine)
    finally:
        ray.shutdown()


def node_name(node: dict[str, Any]) -> str:
    """What a node is called in messages."""
    return f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']}:{node['NodeManagerPort']})"


def in_thread(work: Callable[[], T], name: str) -> "Future[T]":
    """What is done in a thread that the process does not wait for at its end."""
    outcome: Future[T] = Future()

    def settle() -> None:
        try:
            outcome.set_result(work())
        except BaseException as error:
            outcome.set_exception(error)

    threading.Thread(target=settle, name=name, daemon=True).start()
    return outcome


def _ray() -> Any:
    os.environ["RAY_ENABLE_AUTO_CONNECT"] = "0"  # a thread that outlives the joining must not begin a cluster of its own
    try:
        import ray
    except ImportError as error:
        raise ConfigError(
            f"engine.kind is ray, which is not installed ({brief(error)}); `pip install 'headrace[ray]'` on every node"
        ) from error
    return ray


def _address(engine: RayEngine) -> str:
    """Where the cluster is. Raises `DeviceError` if nothing answers there: Ray itself would ask for minutes."""
    address = os.environ.get("RAY_ADDRESS", "auto") if engine.address == "auto" else engine.address
    if address.startswith(CLIENT):
        raise ConfigError(
            f"RAY_ADDRESS is {address!r}, which is for Ray's clients; give engine.address as HOST:PORT of the cluster's head"
        )
    if address == "auto":
        return address
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), CONNECT_SECONDS).close()
    except ValueError as error:
        raise ConfigError(f"engine.address is {address!r}; expected HOST:PORT of the cluster's head, or auto") from error
    except OSError as error:
        raise DeviceError(
            f"no Ray cluster answers at {address} ({error.strerror or error}); start it, or correct engine.address", passes=True
        ) from error
    return address


def _refusal(engine: RayEngine, error: Exception) -> DeviceError:
    """Why Ray did not join, in our words where they tell more."""
    said = brief(error)
    if "ersion mismatch" in said:
        return DeviceError(f"the cluster at {engine.address} and this machine differ: {said}; install the same on all nodes")
    return DeviceError(
        f"this machine cannot join the Ray cluster at {engine.address}: {said}. It must be a node of it "
        "(`ray start --address HOST:PORT`, with --num-cpus 0 if no work is to run here)"
    )


def _with_desk(ray: Any, engine: RayEngine) -> Cluster:
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    first = next((node["NodeID"] for node in ray.nodes() if "node:__internal_head__" in node["Resources"]), "")
    group = group_name(first, uuid.uuid4().hex)
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    desk = ray.remote(num_cpus=0)(Desk).options(name=group, scheduling_strategy=here).remote()
    environment = {name: value for name, value in os.environ.items() if name.startswith(PASSED_ON)}
    head = Head(ray.get_runtime_context().gcs_address)
    return Cluster(engine, ray, head, desk, group, Surroundings(os.getcwd(), environment))
