"""What a Ray cluster has room for: the cores and GPUs of its nodes, whoever uses them now."""

from trainer.common.errors import ConfigError, DeviceError
from trainer.common.formats import plural
from trainer.engines.ray_cluster import Cluster, node_name


def has_gpus(cluster: Cluster, device: str) -> bool:
    """Whether ranks get a GPU each. Raises `DeviceError` if they are to, and no node has any."""
    gpus = sum(int(node["Resources"].get("GPU", 0)) for node in cluster.nodes())
    if device == "gpu" and not gpus:
        raise DeviceError(f"training.device is gpu, but no node of the cluster has one; it has {describe(cluster)}")
    return device != "cpu" and gpus > 0


def plan_ranks(cluster: Cluster, processes: int | None, device: str, precision: str) -> tuple[int, int]:
    """The fewest and the most ranks that the cluster is to carry: as given, else one a GPU, or one.

    Raises `DeviceError` if there is room for fewer, or no GPU for the precision, `ConfigError` for a range that is none.
    """
    gpus = has_gpus(cluster, device)
    if precision == "fp16" and not gpus:
        raise DeviceError(
            f"training.precision is fp16, but there is no GPU: the cluster has {describe(cluster)}; use bf16, fp32"
        )
    places = count_places(cluster, gpus)
    most = processes or (max(1, places) if gpus else 1)
    fewest = cluster.engine.min_workers or most
    if fewest > most:
        raise ConfigError(f"engine.min_workers is {fewest}, more than the {most} of training.processes")
    if fewest > places:
        each = f"{plural(cluster.engine.cpus_per_worker, 'core')}{' and a GPU' if gpus else ''}"
        raise DeviceError(
            f"the job needs {plural(fewest, 'rank')} with {each} each, and the cluster has room for {places}: it has "
            f"{describe(cluster)}; add nodes, or lower training.processes, engine.min_workers or engine.cpus_per_worker"
        )
    return fewest, most


def require_cores(cluster: Cluster) -> None:
    """Raise `DeviceError` if no node has a core: tasks would wait for one without end."""
    if not any(node["Resources"].get("CPU", 0) >= 1 for node in cluster.nodes()):
        raise DeviceError(
            f"the cluster has no core for tasks; it has {describe(cluster)}; add nodes (`ray start` without --num-cpus 0)"
        )


def count_places(cluster: Cluster, gpus: bool) -> int:
    """The ranks that there is room for at the same time."""
    wanted = {"CPU": cluster.engine.cpus_per_worker, **({"GPU": 1} if gpus else {})}
    return sum(min(int(node["Resources"].get(name, 0) // each) for name, each in wanted.items()) for node in cluster.nodes())


WAITING_SECONDS = 60.0
"""Without a sign of life of a rank or task, until it is told what they may wait for; ranks take some twenty to begin."""


def waiting_for_room(cluster: Cluster, who: str) -> str:
    """What is told where no rank or task has begun for a while."""
    free = cluster.ray.available_resources()
    cores, gpus = (int(free.get(what, 0)) for what in ("CPU", "GPU"))
    return (
        f"no {who} has begun, or shown life, for a while; the cluster has {describe(cluster)}, of which "
        f"{plural(cores, 'core')} and {plural(gpus, 'GPU')} are free now; they begin when there is room"
    )


def describe(cluster: Cluster) -> str:
    """The nodes with what they have."""
    told = []
    for node in cluster.nodes():
        cores, gpus = (int(node["Resources"].get(what, 0)) for what in ("CPU", "GPU"))
        told.append(f"{node_name(node)}: {plural(cores, 'core')}, {plural(gpus, 'GPU')}")
    return "; ".join(told)
