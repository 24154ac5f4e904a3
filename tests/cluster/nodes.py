"""A Ray cluster on this machine, with functions to kill and add nodes and to run stages."""

import json
import logging
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from tasks.stage import LOCAL, run_stage
from tests import ROOT
from tests.processes import Running, start_module, wait_until
from trainer.common.progress import Update
from trainer.config.engines import RayEngine
from trainer.engines.ray_cluster import joined

OBJECT_STORE_BYTES = 200 * 2**20

SETTINGS = {
    "RAY_AUTH_MODE": "disabled",
    "RAY_USAGE_STATS_ENABLED": "0",
    "PYTHONPATH": str(ROOT),
    "RAY_health_check_period_ms": "500",  # a killed node is noticed in seconds
    "RAY_health_check_initial_delay_ms": "500",
    "RAY_health_check_failure_threshold": "3",
}
"""Environment variables of the nodes."""


class Nodes:
    """A cluster of a head, where the tests' stages run, and another node, with one core each."""

    def __init__(self, cores: int = 1) -> None:
        from ray.cluster_utils import Cluster

        size = {"num_cpus": cores, "object_store_memory": OBJECT_STORE_BYTES}
        self._cluster = Cluster(initialize_head=True, head_node_args={**size, "include_dashboard": False})
        self._size = size
        self.other = self._cluster.add_node(**size)

    @property
    def address(self) -> str:
        return str(self._cluster.address)

    def engine(self, **settings: Any) -> dict[str, Any]:
        """A job's engine setting for this cluster."""
        return {"kind": "ray", "address": self.address, **settings}

    def kill(self) -> None:
        """Kill the other node with all its processes, like a power cut."""
        raylet = self.other.all_processes["raylet"][0].process.pid
        for process in [*psutil.Process(raylet).children(recursive=True), psutil.Process(raylet)]:
            process.send_signal(signal.SIGKILL)
        self._cluster.remove_node(self.other, allow_graceful=False)

    def lose(self) -> None:
        """Kill the other node and wait until the cluster has noticed, which takes a second."""
        lost = self.other.node_id
        self.kill()
        with joined(RayEngine(**self.engine())) as found:
            wait_until(lambda: all(node["NodeID"] != lost for node in found.nodes()))

    def kill_head(self) -> None:
        """Kill the process that makes the head's node the head."""
        os.kill(self._cluster.head_node.all_processes["gcs_server"][0].process.pid, signal.SIGKILL)

    def add(self, **settings: Any) -> None:
        """Start a new node after one was killed."""
        self.other = self._cluster.add_node(**{**self._size, **settings})

    def workers(self) -> list[int]:
        """The processes on the other node that execute work."""
        raylet = psutil.Process(self.other.all_processes["raylet"][0].process.pid)
        return [child.pid for child in raylet.children(recursive=True) if "ray::" in " ".join(child.cmdline())]

    def end(self) -> None:
        self._cluster.shutdown()


class Seen(NamedTuple):
    """A stage's progress updates and log records."""

    updates: list[Update]
    lines: list[str]


class _Noting(logging.Handler):
    def __init__(self, lines: list[str]) -> None:
        super().__init__()
        self._lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.append(record.getMessage())


def run(
    name: str, arguments: dict[str, Any], ranks: int = 1, on: dict[str, Any] | None = None, device: str = "auto"
) -> tuple[dict[str, Any], Seen]:
    """Run a stage, with its ranks on an engine if given; return its result, progress and log."""
    seen = Seen([], [])
    log = logging.getLogger("stage on a cluster")
    log.setLevel(logging.INFO)
    noting = _Noting(seen.lines)
    log.addHandler(noting)
    try:
        engine = RayEngine(**on) if on else LOCAL
        return run_stage(name, arguments, seen.updates.append, log, ranks, engine, device), seen
    finally:
        log.removeHandler(noting)


def start(
    folder: Path, name: str, arguments: dict[str, Any], ranks: int = 1, on: dict[str, Any] | None = None
) -> Running:
    """A process that waits for a stage."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "request.json"
    asked = {"stage": name, "arguments": arguments, "ranks": ranks, **({"engine": on} if on else {})}
    path.write_text(json.dumps(asked))
    return start_module(folder / "said", "tests.tasks.stage_parent", path, count=2)


def prepare(values: dict[str, Any]) -> dict[str, Any]:
    """The data of a job, prepared in stages as in the flows."""
    job = {key: values[key] for key in ("store", "name", "data", "engine") if key in values}
    tokenizer, _ = run("tokenizer", {"job": job})
    names = [corpus["name"] for corpus in values["data"]["corpora"]]
    shards = [run("tokenize", {"job": job, "corpus": name, "tokenizer": tokenizer})[0] for name in names]
    return {"tokenizer": tokenizer, "shards": shards}


def content(folder: Path, endings: tuple[str, ...] = (".bin", ".idx", ".sums", ".safetensors")) -> dict[str, bytes]:
    """The contents of a folder's files, except those with times."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.suffix in endings}


def processes(name: str) -> list[psutil.Process]:
    """The processes of this machine with a name that begins so."""
    return [each for each in psutil.process_iter(["name"]) if each.info["name"].startswith(name)]


@contextmanager
def environment(**settings: str) -> Iterator[None]:
    """Set environment variables during the block."""
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})


def asked(nodes: Nodes, look: Callable[[Any], Any]) -> Any:
    """The state of the cluster as seen from this machine."""
    with joined(RayEngine(**nodes.engine())) as cluster:
        return look(cluster)
