"""Whether the nodes of a cluster are alike: they run the same programs, and see what the stage's machine has in the
store.
"""

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
from trainer.store.storage import Store

LOOK_SECONDS = 120.0
"""For a look from every node, which starts a process there."""

Versions = dict[str, str]


class Likeness(NamedTuple):
    """What a node must have in common with the stage's machine."""

    versions: tuple[tuple[str, str], ...]
    url: str
    probe: str
    """A file that is in the store for as long as the stage is on the cluster."""


@contextmanager
def consistent_nodes(cluster: Cluster, store: Store) -> Iterator[Likeness]:
    """Raise unless every node is like this one, for the length of a block in which others may join, to be compared too.

    `DeviceError` names nodes of other versions, `StorageError` those that do not see the store.
    """
    probe = store.write_probe()
    try:
        likeness = Likeness(tuple(own_versions().items()), store.url, probe)
        _compare(likeness, look_everywhere(cluster, likeness))
        yield likeness
    finally:
        store.delete(probe)


@cache
def require_consistent(likeness: Likeness) -> None:
    """The same, of the node that this is called on; once a process."""
    seen = Store(likeness.url).exists(likeness.probe)
    problem = None if seen else f"cannot see {likeness.probe}"
    _compare(likeness, {socket.gethostname(): {"versions": own_versions(), "problem": problem}})


def own_versions() -> Versions:
    """The versions of what computes here."""
    import ray

    packages = {name: found for name, found in versions().items() if name != "prefect"}  # which nodes do not use
    return {"python": platform.python_version(), "ray": ray.__version__, **packages, "headrace": trainer.__version__}


def _compare(likeness: Likeness, found: dict[str, dict[str, Any]]) -> None:
    own = dict(likeness.versions)
    others = {node: each["versions"] for node, each in found.items() if each["versions"] != own}
    if others:
        told = "; ".join(
            f"{node} has {_tell(theirs, own)}, and the stage's machine {_tell(own, theirs)}"
            for node, theirs in others.items()
        )
        raise DeviceError(f"the cluster's nodes differ: {told}; install the same on all of them")
    blind = {node: each["problem"] for node, each in found.items() if each["problem"]}
    if blind:
        raise StorageError(
            f"the store {likeness.url} is not shared: "
            f"{'; '.join(f'{node} {problem}' for node, problem in blind.items())}, which the stage's machine has "
            "written there; name a folder or a bucket that all nodes of the cluster see under the same name"
        )


def _tell(own: Versions, others: Versions) -> str:
    """Those of one machine's versions that are not another's."""
    names = [name for name in {**own, **others} if own.get(name) != others.get(name)]
    return ", ".join(f"{name} {own.get(name, 'missing')}" for name in names)


def look_everywhere(cluster: Cluster, likeness: Likeness) -> dict[str, dict[str, Any]]:
    """What each node says of its versions and of the store, by its name: each that lives when the last one has
    answered.
    """
    from ray.exceptions import RayError
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    folder, environment = cluster.surroundings
    url, probe = likeness.url, likeness.probe

    def look() -> dict[str, Any]:  # sent as it stands: the node may have no `trainer` to find it in
        import os

        try:
            from trainer.engines.consistency import own_versions
            from trainer.store.storage import Store
        except ImportError as error:
            return {"versions": {"headrace": f"missing or another one ({error})"}, "problem": None}
        versions = own_versions()
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
    found: dict[str, dict[str, Any]] = {}
    looked_at: set[str] = set()
    while others := [node for node in cluster.nodes() if node["NodeID"] not in looked_at]:  # a node may join meanwhile
        pinned = [NodeAffinitySchedulingStrategy(node["NodeID"], soft=False) for node in others]
        asked = [task.options(scheduling_strategy=strategy).remote() for strategy in pinned]
        for node, ref in zip(others, asked, strict=True):
            looked_at.add(node["NodeID"])
            try:
                found[node_name(node)] = cluster.ray.get(ref, timeout=LOOK_SECONDS)
            except RayError as error:
                if any(each["NodeID"] == node["NodeID"] for each in cluster.nodes()):  # else it was lost meanwhile
                    told = f"{node_name(node)} of the cluster does not answer: {brief(error)}; see to it"
                    raise DeviceError(told, transient=True) from error
    return found
