"""Joining a Ray cluster, of which this machine is a node, and the cluster's resources.

A stage starts an actor on its own machine, which ends with the stage. Tasks and workers send it their progress, log
lines and exit statuses, and ask it whether to stop.
"""

import io
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import wait
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple, cast

from trainer.common.credentials import ENDPOINT, IDENTITY, STRONGER, set_environment
from trainer.common.display import plural
from trainer.common.errors import ConfigError, DeviceError, brief
from trainer.common.process import in_thread
from trainer.common.stopping import StopRequested, stop_requested
from trainer.config.engines import CLIENT, RayEngine
from trainer.engines.executors import NAMESPACE, group_name

REPORT_SECONDS = 0.5
"""Seconds between two progress reports of a unit."""


class ProgressActor:
    """Receives progress, lines and exit statuses from tasks and workers."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._done: dict[int, int] = {}
        self._ended: dict[str, dict[int, int]] = {}
        self._stopping, self._asked = False, time.monotonic()

    def say(self, line: str) -> None:
        """Add a line to the stage's output."""
        self._lines.append(line)

    def take(self) -> tuple[list[str], float]:
        """The lines since the last call, and the seconds since a rank last asked whether to stop."""
        lines, self._lines = self._lines, []
        return lines, time.monotonic() - self._asked

    def reach(self, unit: int, done: int) -> None:
        """Set a unit's progress; a lost unit starts again from 0."""
        self._done[unit] = done

    def done(self) -> int:
        """The progress of all units together."""
        return sum(self._done.values())

    def ask_to_stop(self) -> None:
        self._stopping = True

    def is_stopping(self) -> bool:
        self._asked = time.monotonic()
        return self._stopping

    def end(self, start: str, rank: int, status: int) -> None:
        """Record the exit status of a rank; `start` identifies the ranks started together."""
        self._ended.setdefault(start, {})[rank] = status

    def ended(self, start: str) -> int:
        """How many of the ranks that were started together have ended."""
        return len(self._ended.get(start, {}))

    def statuses(self) -> list[int]:
        """The exit statuses of all ranks that were not lost."""
        return [status for ranks in self._ended.values() for status in ranks.values()]


class Count:
    """Reports the progress of a unit of work to a progress actor."""

    def __init__(self, actor: Any, unit: int) -> None:
        self._actor, self._unit, self._done, self._reported = actor, unit, 0, 0.0

    def advance(self, amount: int) -> None:
        self._done += amount
        now = time.monotonic()
        if now - self._reported >= REPORT_SECONDS:
            self._reported = now
            self.report()

    def report(self) -> None:
        self._actor.reach.remote(self._unit, self._done)


class ActorOutput(io.TextIOBase):
    """A text stream that sends what is written to a progress actor, line by line."""

    def __init__(self, actor: Any) -> None:
        self._actor, self._begun, self._turn = actor, "", threading.Lock()

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        with self._turn:
            *lines, self._begun = (self._begun + text).split("\n")
            for line in lines:
                self._actor.say.remote(line)
        return len(text)


AUTO = "auto"
CONNECT_SECONDS = 10.0
ASK_SECONDS, HEAD_SECONDS = 2.0, 20.0
LOOK_SECONDS = 0.2
"""Seconds between checks for a stop request."""
PASSED_ON = ("AWS_", "HF_TOKEN", "HF_ENDPOINT", "HF_HUB_OFFLINE", "HEADRACE_PATIENCE", "OMP_NUM_THREADS")
"""Prefixes of the environment variables that processes on other nodes get from the stage."""


class Surroundings(NamedTuple):
    """The working folder and environment variables of the stage, which processes on other nodes take over."""

    folder: str
    environment: dict[str, str]

    def enter(self) -> None:
        """Apply them. A missing folder raises nothing here: relative paths fail where they are used."""
        with suppress(OSError):
            os.chdir(self.folder)
        # The stage's identity is not mixed with the node's, and goes to no endpoint of the node.
        own = {*IDENTITY, ENDPOINT, *STRONGER} if IDENTITY & self.environment.keys() else set[str]()
        set_environment(self.environment, former=own)


class Head:
    """Checks whether a cluster's head answers. After a minute without it, Ray ends this process with its own error."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._asked = self._heard = time.monotonic()

    def check(self) -> None:
        """Raise `DeviceError` if the head has not answered for `HEAD_SECONDS`; connects at most every `ASK_SECONDS`."""
        if time.monotonic() - self._asked < ASK_SECONDS:
            return
        host, _, port = self._address.rpartition(":")
        try:
            socket.create_connection((host, int(port)), ASK_SECONDS).close()
            self._heard = time.monotonic()
        except OSError as error:
            if time.monotonic() - self._heard > HEAD_SECONDS:
                raise DeviceError(
                    f"the head of the Ray cluster at {self._address} no longer answers "
                    f"({error.strerror or error}); start the cluster again, then run the same command to continue",
                    transient=True,
                ) from error
        self._asked = time.monotonic()


class Cluster(NamedTuple):
    """A cluster that this process has joined."""

    engine: RayEngine
    ray: Any
    head: Head
    actor: Any
    group: str
    surroundings: Surroundings

    def nodes(self) -> list[dict[str, Any]]:
        """The living nodes, as Ray describes them."""
        return [node for node in self.ray.nodes() if node["Alive"]]

    def ask_actor(self, method: str) -> Any:
        """The progress actor's answer. Raises `DeviceError` if it is lost: work can neither be stopped nor heard."""
        from ray.exceptions import RayError

        try:
            return self.ray.get(getattr(self.actor, method).remote())
        except RayError as error:
            raise DeviceError(
                f"the cluster's process that tasks and ranks report to was lost: {brief(error)}", transient=True
            ) from error


@contextmanager
def joined(engine: RayEngine) -> Iterator[Cluster]:
    """Join the cluster; leaving it ends everything that this process runs there.

    Ray joins in a thread: in the main thread it would install its own SIGTERM handler, which ends the process.

    Raises `ConfigError` if Ray is not installed, `DeviceError` if there is no such cluster or its versions differ.
    """
    ray = _ray()
    named, address = _address(engine)
    joining = in_thread(
        lambda: ray.init(address, namespace=NAMESPACE, log_to_driver=False, logging_level="ERROR"), "ray-init"
    )
    while not wait([joining], LOOK_SECONDS).done:
        if stop_requested():
            raise StopRequested
    try:
        joining.result()
    except ConnectionError as error:
        if "node info" in str(error.__cause__):  # the head knows no node of this machine
            raise _refusal(engine, cast(Exception, error.__cause__)) from error
        if address != AUTO:
            raise DeviceError(
                f"{named} is {address!r}, where a server answers that is not the head of a Ray cluster; set the port "
                "that `ray start --head` uses, by default 6379"
            ) from error
        raise DeviceError(
            f"{named} is {address!r}, but no Ray cluster runs on this machine; start one (`ray start --head`), join "
            "one (`ray start --address HOST:PORT`), or set its address"
        ) from error
    except Exception as error:  # Ray has no specific exceptions for failed joins
        raise _refusal(engine, error) from error
    try:
        yield _with_actor(ray, engine)
    finally:
        ray.shutdown()


def node_name(node: dict[str, Any]) -> str:
    """A node's name in messages."""
    return f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']}:{node['NodeManagerPort']})"


def _ray() -> Any:
    # A thread that outlives this cluster connection must not start a cluster of its own.
    os.environ["RAY_ENABLE_AUTO_CONNECT"] = "0"
    try:
        import ray
    except ImportError as error:
        raise ConfigError(
            f"engine.kind is ray, but Ray cannot be imported ({brief(error)}); run `pip install 'headrace[ray]'` on "
            "every node"
        ) from error
    return ray


def _address(engine: RayEngine) -> tuple[str, str]:
    """The setting or variable with the cluster's address, and the address. Raises `DeviceError` if nothing answers
    there: Ray itself would retry for minutes.
    """
    named, address = "engine.address", engine.address
    if address == AUTO and (given := os.environ.get("RAY_ADDRESS")):
        named, address = "RAY_ADDRESS", given
    if address.startswith(CLIENT):
        raise ConfigError(
            f"{named} is {address!r}, which is for Ray's clients; set engine.address to HOST:PORT of the cluster's head"
        )
    place, remedy = address, f"correct {named}"
    if address == AUTO:
        from ray._private.services import get_ray_address_from_environment

        try:
            place = get_ray_address_from_environment(AUTO, None)
        except ConnectionError:  # no cluster has been started here, as joining says
            return named, address
        remedy = f"set {named}: this is the last cluster that this machine joined"
    expected = f"{named} is {address!r}; expected HOST:PORT of the cluster's head, or {AUTO}"
    if "://" in address:
        raise ConfigError(f"{expected}: an address with {address.partition('://')[0]}:// is that of Ray's dashboard")
    host, _, port = place.rpartition(":")
    try:
        socket.create_connection((host, int(port)), CONNECT_SECONDS).close()
    except ValueError as error:
        raise ConfigError(expected) from error
    except OSError as error:
        raise DeviceError(
            f"no Ray cluster answers at {place} ({error.strerror or error}); start it, or {remedy}",
            transient=True,
        ) from error
    return named, address


def _refusal(engine: RayEngine, error: Exception) -> DeviceError:
    """An error for why Ray did not join, with advice."""
    reason = brief(error)
    if "ersion mismatch" in reason:
        return DeviceError(
            f"the cluster at {engine.address} and this machine differ: {reason}; install the same versions on all nodes"
        )
    return DeviceError(
        f"this machine cannot join the Ray cluster at {engine.address}: {reason}. It must be a node of it "
        "(`ray start --address HOST:PORT`, with --num-cpus 0 if it should run no work)"
    )


def _with_actor(ray: Any, engine: RayEngine) -> Cluster:
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    first = next((node["NodeID"] for node in ray.nodes() if "node:__internal_head__" in node["Resources"]), "")
    group = group_name(first, uuid.uuid4().hex)
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    actor = ray.remote(num_cpus=0)(ProgressActor).options(name=group, scheduling_strategy=here).remote()
    environment = {name: value for name, value in os.environ.items() if name.startswith(PASSED_ON)}
    head = Head(ray.get_runtime_context().gcs_address)
    return Cluster(engine, ray, head, actor, group, Surroundings(os.getcwd(), environment))


def has_gpus(cluster: Cluster, device: str) -> bool:
    """Whether ranks get a GPU each. Raises `DeviceError` if the job requires GPUs and no node has one."""
    gpus = sum(int(node["Resources"].get("GPU", 0)) for node in cluster.nodes())
    if device == "gpu" and not gpus:
        raise DeviceError(f"the job's device is gpu, but no node of the cluster has a GPU; it has {describe(cluster)}")
    return device != "cpu" and gpus > 0


def plan_ranks(cluster: Cluster, processes: int | None, device: str, precision: str) -> tuple[int, int]:
    """The fewest and the most ranks to run: as configured, else one per GPU, or one.

    Raises `DeviceError` if the cluster has resources for fewer, or no GPU for the precision, and `ConfigError` if
    `min_workers` exceeds the maximum.
    """
    gpus = has_gpus(cluster, device)
    if precision == "fp16" and not gpus:
        raise DeviceError(
            f"the job's precision is fp16, but there is no GPU: the cluster has {describe(cluster)}; use bf16 or fp32"
        )
    places = count_places(cluster, gpus)
    most = processes or (max(1, places) if gpus else 1)
    fewest = cluster.engine.min_workers or most
    if fewest > most:
        raise ConfigError(f"engine.min_workers is {fewest}, more than the {most} of training.processes")
    if fewest > places:
        each = f"{plural(cluster.engine.cpus_per_worker, 'core')}{' and a GPU' if gpus else ''}"
        raise DeviceError(
            f"the job needs {plural(fewest, 'rank')} with {each} each, but the cluster can run {places}: it has "
            f"{describe(cluster)}; add nodes, or lower training.processes, engine.min_workers or engine.cpus_per_worker"
        )
    return fewest, most


def require_cores(cluster: Cluster) -> None:
    """Raise `DeviceError` if no node has a core: tasks would wait forever."""
    if not any(node["Resources"].get("CPU", 0) >= 1 for node in cluster.nodes()):
        raise DeviceError(
            f"the cluster has no core for tasks; it has {describe(cluster)}; add nodes (`ray start` without --num-cpus "
            "0)"
        )


def count_places(cluster: Cluster, gpus: bool) -> int:
    """The number of ranks that the cluster can run at the same time."""
    wanted = {"CPU": cluster.engine.cpus_per_worker, **({"GPU": 1} if gpus else {})}
    return sum(
        min(int(node["Resources"].get(name, 0) // each) for name, each in wanted.items()) for node in cluster.nodes()
    )


WAITING_SECONDS = 60.0
"""Seconds without progress of a rank or task until a warning lists free resources; ranks take about 20 to start."""


def waiting_for_room(cluster: Cluster, who: str) -> str:
    """The warning that no rank or task has started for a while."""
    free = cluster.ray.available_resources()
    cores, gpus = (int(free.get(what, 0)) for what in ("CPU", "GPU"))
    return (
        f"no {who} has started or reported progress for a while; the cluster has {describe(cluster)}, of which "
        f"{plural(cores, 'core')} and {plural(gpus, 'GPU')} are free now; they start when resources are free"
    )


def describe(cluster: Cluster) -> str:
    """The nodes and their resources."""
    nodes = []
    for node in cluster.nodes():
        cores, gpus = (int(node["Resources"].get(what, 0)) for what in ("CPU", "GPU"))
        nodes.append(f"{node_name(node)}: {plural(cores, 'core')}, {plural(gpus, 'GPU')}")
    return "; ".join(nodes)
