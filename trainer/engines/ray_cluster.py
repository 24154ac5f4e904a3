"""Joining a Ray cluster, of which this machine is a node, for the length of a block."""

import os
import platform
import signal
import socket
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import trainer
from trainer.common.errors import ConfigError, DeviceError, StorageError, brief
from trainer.common.stopping import SIGNALS
from trainer.config.engines import CLIENT, RayEngine
from trainer.engines.desk import Desk
from trainer.engines.groups import NAMESPACE, group_name
from trainer.store.probe import write_probe
from trainer.store.storage import Store

CONNECT_SECONDS = 10.0
LOOK_SECONDS = 120.0
"""For a look from every node, which starts a process there."""

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


class Cluster(NamedTuple):
    """A cluster that was joined."""

    engine: RayEngine
    ray: Any
    desk: Any
    group: str
    surroundings: Surroundings

    def nodes(self) -> list[dict[str, Any]]:
        """The nodes that live, as Ray describes them."""
        return [node for node in self.ray.nodes() if node["Alive"]]


@contextmanager
def joined(engine: RayEngine) -> Iterator[Cluster]:
    """Join the cluster; leaving it ends all that this process has running there.

    Raises `ConfigError` if Ray is not installed, `DeviceError` if there is no such cluster or it is of other versions.
    """
    ray = _ray()
    address = _address(engine)
    handlers = {signum: signal.getsignal(signum) for signum in SIGNALS}
    try:
        ray.init(address, namespace=NAMESPACE, log_to_driver=False, logging_level="ERROR")
    except ConnectionError as error:
        raise DeviceError(
            f"engine.address is {engine.address!r}, but no Ray cluster runs on this machine; start one (`ray start --head`), "
            "join one (`ray start --address HOST:PORT`), or give its address"
        ) from error
    except Exception as error:  # Ray has no classes of errors for what hinders joining
        raise _refusal(engine, error) from error
    finally:
        if threading.current_thread() is threading.main_thread():
            for signum, handler in handlers.items():  # Ray has put its own there, which ends the process
                signal.signal(signum, handler)
    try:
        yield _with_desk(ray, engine)
    finally:
        ray.shutdown()


def require_alike(cluster: Cluster, store: Store) -> None:
    """Raise unless every node runs the same programs, and sees what this one writes to the store.

    `DeviceError` names nodes of other versions, `StorageError` those that do not see the store.
    """
    nodes = cluster.nodes()
    if len(nodes) == 1:
        return
    probe = write_probe(store)
    try:
        found = _look_everywhere(cluster, nodes, store.url, probe)
    finally:
        store.delete(probe)
    own = _versions(trainer.__version__, cluster.ray.__version__)
    others = {node: each["versions"] for node, each in found.items() if each["versions"] != own}
    if others:
        told = "; ".join(f"{node} has {_tell(versions)}" for node, versions in others.items())
        raise DeviceError(f"the cluster's nodes differ: this one has {_tell(own)}, but {told}; install the same on all of them")
    blind = {node: each["problem"] for node, each in found.items() if each["problem"]}
    if blind:
        raise StorageError(
            f"the store {store.url} is not shared: {'; '.join(f'{node} {problem}' for node, problem in blind.items())}, which "
            "this machine has written there; name a folder or a bucket that all nodes of the cluster see under the same name"
        )


def node_name(node: dict[str, Any]) -> str:
    """What a node is called in messages."""
    return f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']}:{node['NodeManagerPort']})"


def _look_everywhere(cluster: Cluster, nodes: list[dict[str, Any]], url: str, probe: str) -> dict[str, dict[str, Any]]:
    """What each node says of its versions and of the store, by its name."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    folder, environment = cluster.surroundings

    def look() -> dict[str, Any]:  # sent as it stands: the node may have no `trainer` to find it in
        import os
        import platform

        import ray

        try:
            import trainer
            from trainer.store.storage import Store
        except ImportError as error:
            return {"versions": {"headrace": f"none ({error})"}, "problem": None}
        versions = {"python": platform.python_version(), "ray": ray.__version__, "headrace": trainer.__version__}
        try:
            if os.path.isdir(folder):
                os.chdir(folder)
            elif "://" not in url and not os.path.isabs(url):
                return {"versions": versions, "problem": f"has no folder {folder}, and cannot see {probe}"}
            os.environ.update(environment)
            seen = Store(url).exists(probe)
        except Exception as error:
            return {"versions": versions, "problem": f"({type(error).__name__}: {error}) cannot see {probe}"}
        return {"versions": versions, "problem": None if seen else f"cannot see {probe}"}

    task = cluster.ray.remote(num_cpus=0, max_retries=0)(look)
    asked = {
        node_name(node): task.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)).remote()
        for node in nodes
    }
    return dict(zip(asked, cluster.ray.get(list(asked.values()), timeout=LOOK_SECONDS), strict=True))


def _ray() -> Any:
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

    head = next((node["NodeID"] for node in ray.nodes() if "node:__internal_head__" in node["Resources"]), "")
    group = group_name(head, uuid.uuid4().hex)
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    desk = ray.remote(num_cpus=0)(Desk).options(name=group, scheduling_strategy=here).remote()
    environment = {name: value for name, value in os.environ.items() if name.startswith(PASSED_ON)}
    return Cluster(engine, ray, desk, group, Surroundings(os.getcwd(), environment))


def _versions(headrace: str, ray: str) -> dict[str, str]:
    return {"python": platform.python_version(), "ray": ray, "headrace": headrace}


def _tell(versions: dict[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items())
