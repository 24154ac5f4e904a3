"""Checks that all nodes of a cluster run the same programs, and share the store with the stage's machine."""

import platform
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple

import trainer
from trainer.common.errors import DeviceError, StorageError, brief
from trainer.common.process import versions
from trainer.engines.ray_cluster import Cluster, node_name
from trainer.store.probes import write_probe
from trainer.store.storage import Store

LOOK_SECONDS = 120.0
"""The timeout of a check on a node, which starts a process there."""

Versions = dict[str, str]


class Likeness(NamedTuple):
    """What a node must have in common with the stage's machine."""

    versions: tuple[tuple[str, str], ...]
    url: str
    probe: str
    """A file that exists in the store while the stage uses the cluster."""


@contextmanager
def consistent_nodes(cluster: Cluster, store: Store) -> Iterator[Likeness]:
    """Raise unless every node is like this one; nodes that join during the block are to be checked with `Likeness`.

    Raises `DeviceError` for nodes with other versions, `StorageError` for nodes that cannot see the store.
    """
    probe = write_probe(store, "shared")
    try:
        likeness = Likeness(tuple(own_versions().items()), store.url, probe)
        _compare(likeness, look_everywhere(cluster, likeness))
        yield likeness
    finally:
        store.delete(probe)


@cache
def require_consistent(likeness: Likeness) -> None:
    """Check the node on which this is called, once per process; raises as `consistent_nodes`."""
    seen = Store(likeness.url).exists(likeness.probe)
    problem = None if seen else f"cannot see {likeness.probe}"
    _compare(likeness, {socket.gethostname(): {"versions": own_versions(), "problem": problem}})


def require_versions(versions: Versions) -> None:
    """Raise `DeviceError` unless the node on which this is called has the versions of the stage's machine."""
    _compare_versions(versions, {socket.gethostname(): own_versions()})


def own_versions() -> Versions:
    """The versions of Python and the libraries on this node."""
    import ray

    packages = {name: found for name, found in versions().items() if name != "prefect"}  # nodes do not use Prefect
    return {"python": platform.python_version(), "ray": ray.__version__, **packages, "headrace": trainer.__version__}


def _compare(likeness: Likeness, found: dict[str, dict[str, Any]]) -> None:
    _compare_versions(dict(likeness.versions), {node: each["versions"] for node, each in found.items()})
    blind = {node: each["problem"] for node, each in found.items() if each["problem"]}
    if blind:
        raise StorageError(
            f"the store {likeness.url} is not shared: "
            f"{'; '.join(f'{node} {problem}' for node, problem in blind.items())}, which the stage's machine has "
            "written there; set `store` to a folder or a bucket that all nodes of the cluster see under the same "
            "name"
        )


def _compare_versions(own: Versions, found: dict[str, Versions]) -> None:
    others = {node: theirs for node, theirs in found.items() if theirs != own}
    if others:
        differences = "; ".join(
            f"{node} has {_differing(theirs, own)}; the stage's machine has {_differing(own, theirs)}"
            for node, theirs in others.items()
        )
        raise DeviceError(f"the cluster's nodes differ: {differences}; install the same versions on all of them")


def _differing(own: Versions, others: Versions) -> str:
    """The versions of one machine that differ from another's."""
    names = [name for name in {**own, **others} if own.get(name) != others.get(name)]
    return ", ".join(f"{name} {own.get(name, 'missing')}" for name in names)


def look_everywhere(cluster: Cluster, likeness: Likeness) -> dict[str, dict[str, Any]]:
    """Each node's versions and problem with the store, by the node's name; includes nodes that join meanwhile."""
    from ray.exceptions import RayError
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    folder, environment = cluster.surroundings
    url, probe = likeness.url, likeness.probe

    def look() -> dict[str, Any]:  # pickled by value: the node may not have `trainer`
        import os

        try:
            from trainer.engines.consistency import own_versions
            from trainer.engines.ray_cluster import Surroundings
            from trainer.store.storage import Store
        except ImportError as error:
            return {"versions": {"headrace": f"missing or another version ({error})"}, "problem": None}
        versions = own_versions()
        try:
            if not os.path.isdir(folder) and "://" not in url and not os.path.isabs(url):
                return {"versions": versions, "problem": f"has no folder {folder}, and cannot see {probe}"}
            Surroundings(folder, environment).enter()
            seen = Store(url).exists(probe)
        except Exception as error:
            return {"versions": versions, "problem": f"({type(error).__name__}: {error}) cannot see {probe}"}
        return {"versions": versions, "problem": None if seen else f"cannot see {probe}"}

    task = cluster.ray.remote(num_cpus=0, max_retries=0)(look)
    found: dict[str, dict[str, Any]] = {}
    looked_at: set[str] = set()
    while others := [node for node in cluster.nodes() if node["NodeID"] not in looked_at]:  # a node may join meanwhile
        pinned = [NodeAffinitySchedulingStrategy(node["NodeID"], soft=False) for node in others]
        tasks = [task.options(scheduling_strategy=strategy).remote() for strategy in pinned]
        for node, ref in zip(others, tasks, strict=True):
            looked_at.add(node["NodeID"])
            try:
                found[node_name(node)] = cluster.ray.get(ref, timeout=LOOK_SECONDS)
            except RayError as error:
                if any(each["NodeID"] == node["NodeID"] for each in cluster.nodes()):  # else it was lost meanwhile
                    message = f"node {node_name(node)} of the cluster does not answer: {brief(error)}; check it"
                    raise DeviceError(message, transient=True) from error
    return found
