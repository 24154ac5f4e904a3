"""Jobs that a cluster cannot run are refused before long work starts, by one error that says what to do."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import files, version
from pathlib import Path
from typing import Any

import pytest

from tests import ROOT
from tests.cluster.nodes import OBJECT_STORE_BYTES, SETTINGS, Nodes, asked, environment, prepare, run, start
from tests.processes import free_port, stages, wait_until
from tests.support import data_values, small_values
from trainer import __version__
from trainer.common.errors import ConfigError, DeviceError, StorageError
from trainer.config.engines import RayEngine
from trainer.engines.consistency import Likeness, look_everywhere, own_versions
from trainer.engines.executors import Advance
from trainer.engines.ray_cluster import joined, node_name
from trainer.engines.ray_tasks import ray_tasks
from trainer.store.storage import Store

AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount what another machine would have")


def refused(raw: Path, store: Path | str, engine: dict[str, Any], **changes: Any) -> str:
    """The preflight's output for a job on a cluster."""
    job = {**small_values(raw, store, **changes), "engine": {"kind": "ray", **engine}}
    with pytest.raises((ConfigError, DeviceError, StorageError)) as caught:
        run("preflight", {"job": job})
    return f"{type(caught.value).__name__}: {caught.value}"


def test_an_address_where_no_cluster_is(raw: Path, tmp_path: Path) -> None:
    port = free_port()
    begun = time.monotonic()
    told = refused(raw, tmp_path, {"address": f"127.0.0.1:{port}"})
    assert told.startswith(f"DeviceError: no Ray cluster answers at 127.0.0.1:{port} (Connection refused)")
    assert time.monotonic() - begun < 30


def test_a_cluster_of_this_machine_that_has_ended_is_not_waited_for(raw: Path, tmp_path: Path) -> None:
    port = free_port()
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "ray_current_cluster").write_text(f"127.0.0.1:{port}")
    begun = time.monotonic()
    with environment(RAY_TMPDIR=str(tmp_path)):
        told = refused(raw, tmp_path / "store", {"address": "auto"})
    assert told.startswith(f"DeviceError: no Ray cluster answers at 127.0.0.1:{port} (Connection refused); start it")
    assert time.monotonic() - begun < 30


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({}, "no Ray cluster runs on this machine; start one (`ray start --head`)"),
        ({"RAY_ADDRESS": ""}, "no Ray cluster runs on this machine; start one (`ray start --head`)"),
        ({"RAY_ADDRESS": "ray://127.0.0.1:10001"}, "ConfigError: RAY_ADDRESS is 'ray://127.0.0.1:10001'"),
        (
            {"RAY_ADDRESS": "http://127.0.0.1:8265"},
            "ConfigError: RAY_ADDRESS is 'http://127.0.0.1:8265'; expected HOST:PORT of the cluster's head, or auto",
        ),
    ],
    ids=["none", "empty", "for clients", "of a dashboard"],
)
def test_an_address_in_the_environment_where_no_head_is(
    given: dict[str, str], says: str, raw: Path, tmp_path: Path
) -> None:
    with environment(**given):
        assert says in refused(raw, tmp_path, {"address": "auto"})


def test_a_server_that_is_not_the_head_of_a_cluster(nodes: Nodes, raw: Path, tmp_path: Path) -> None:
    port = asked(nodes, lambda cluster: cluster.nodes()[0]["NodeManagerPort"])
    told = refused(raw, tmp_path, {"address": f"127.0.0.1:{port}"})
    assert f"engine.address is '127.0.0.1:{port}', where a server answers that is not the head of a Ray" in told


def test_more_ranks_than_there_is_room_for(nodes: Nodes, raw: Path, tmp_path: Path) -> None:
    told = refused(raw, tmp_path, nodes.engine(), training__processes=4)
    assert "DeviceError: the job needs 4 ranks with 1 core each, but the cluster can run 2: it has " in told
    assert told.count("1 core, 0 GPUs") == 2


def test_more_cores_a_rank_than_a_node_has(nodes: Nodes, raw: Path, tmp_path: Path) -> None:
    told = refused(raw, tmp_path, nodes.engine(cpus_per_worker=2))
    assert "needs 1 rank with 2 cores each, but the cluster can run 0" in told


def test_gpus_that_no_node_has(nodes: Nodes, raw: Path, tmp_path: Path) -> None:
    told = refused(raw, tmp_path, nodes.engine(), training__device="gpu")
    assert "the job's device is gpu, but no node of the cluster has a GPU; it has " in told


@pytest.mark.parametrize(
    ("stage", "job"), [("train", {"training": {"device": "gpu"}}), ("evaluate", {"device": "gpu"})]
)
def test_gpus_that_no_node_has_any_more(nodes: Nodes, stage: str, job: dict[str, Any]) -> None:
    with pytest.raises(DeviceError, match=r"^the job's device is gpu, but no node of the cluster has a GPU"):
        run(stage, {"job": job}, on=nodes.engine(), device="gpu")


def test_fewer_ranks_among_which_the_batch_does_not_divide(nodes: Nodes, raw: Path, tmp_path: Path) -> None:
    told = refused(raw, tmp_path, nodes.engine(min_workers=1), training__processes=2, training__global_batch=7)
    assert "training.global_batch 7 does not divide among 2 ranks" in told


@contextmanager
def machine(cluster: Nodes, mount: str) -> Iterator[None]:
    """Replace the second node by one that sees other files, like another machine."""
    cluster.lose()
    with joining_machine(cluster, mount):
        with joined(RayEngine(**cluster.engine())) as found:
            wait_until(lambda: len(found.nodes()) == 2)
        yield


@contextmanager
def joining_machine(cluster: Nodes, mount: str) -> Iterator[None]:
    """Start a further node, which joins later."""
    ray = f"{sys.executable} -m ray.scripts.scripts start --block --address={cluster.address} --num-cpus=1"
    script = f"{mount} && exec {ray} --object-store-memory={OBJECT_STORE_BYTES}"
    command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", script]
    node = subprocess.Popen(command, cwd=ROOT, env={**os.environ, **SETTINGS}, stdout=subprocess.DEVNULL)
    try:
        yield
    finally:
        node.terminate()
        node.wait()


@AS_ROOT
def test_a_store_that_another_node_does_not_see(doomed: Nodes, raw: Path, tmp_path: Path) -> None:
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    with machine(doomed, f"mount -t tmpfs none {hidden}"):
        told = refused(raw, hidden / "store", doomed.engine())
    assert f"StorageError: the store {hidden / 'store'} is not shared: " in told
    assert "cannot see .staging/shared-" in told


@AS_ROOT
def test_nodes_with_another_version(doomed: Nodes, raw: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.py"
    other.write_text('__version__ = "0.0.7"\n')
    with machine(doomed, f"mount --bind {other} {ROOT / 'trainer' / '__init__.py'}"):
        told = refused(raw, tmp_path / "store", doomed.engine())
    assert "DeviceError: the cluster's nodes differ: " in told
    assert (
        f"has headrace 0.0.7; the stage's machine has headrace {__version__}; install the same versions on all of them"
        in told
    )


@AS_ROOT
def test_nodes_with_another_version_of_a_library(doomed: Nodes, raw: Path, tmp_path: Path) -> None:
    described = next(path for path in files("tokenizers") or [] if path.name == "METADATA").locate()
    text, own = Path(described).read_text(encoding="utf-8"), version("tokenizers")
    (tmp_path / "other").write_text(text.replace(f"\nVersion: {own}\n", "\nVersion: 0.0.9\n"), encoding="utf-8")
    with machine(doomed, f"mount --bind {tmp_path / 'other'} {described}"):
        told = refused(raw, tmp_path / "store", doomed.engine())
    assert f"has tokenizers 0.0.9; the stage's machine has tokenizers {own}; install the same" in told


@AS_ROOT
def test_a_node_that_joins_later_and_does_not_see_the_store(doomed: Nodes, tmp_path: Path) -> None:
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    doomed.lose()
    store = Store(str(hidden / "store"))
    with (
        ray_tasks(RayEngine(**doomed.engine()), store) as tasks,
        joining_machine(doomed, f"mount -t tmpfs none {hidden}"),
    ):
        begun = [tasks.submit(take_a_while) for _ in range(30)]
        with pytest.raises(StorageError, match=r"is not shared: .* cannot see \.staging/shared-"):
            for each in begun:
                each.result()


@AS_ROOT
def test_ranks_do_not_run_on_a_node_that_joins_later_with_another_version(
    doomed: Nodes, raw: Path, tmp_path: Path
) -> None:
    doomed.lose()
    engine = doomed.engine(min_workers=1, resize_seconds=2.0)
    job = {**small_values(raw, tmp_path / "store", training__max_steps=4000, training__processes=2), "engine": engine}
    running = start(tmp_path / "asked", "train", {"job": job, "data": prepare(job)}, 2, engine)
    wait_until(lambda: running.status() is not None or "1 of the cluster's workers start" in running.output()[1])
    other = tmp_path / "other.py"
    other.write_text('__version__ = "0.0.7"\n')
    with joining_machine(doomed, f"mount --bind {other} {ROOT / 'trainer' / '__init__.py'}"):
        ended = running.wait(150.0)
    assert "DeviceError: the cluster's nodes differ: " in ended.stderr, ended
    assert f"has headrace 0.0.7; the stage's machine has headrace {__version__}; " in ended.stderr


def test_a_node_that_joins_during_the_look_is_looked_at_as_well(
    nodes: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    likeness = Likeness(tuple(own_versions().items()), str(tmp_path), "probe")
    with joined(RayEngine(**nodes.engine())) as cluster:
        both = cluster.nodes()
        before = iter([both[:1]])  # when the check begins, the other node has not joined yet
        monkeypatch.setattr(type(cluster), "nodes", lambda self: next(before, both))
        assert look_everywhere(cluster, likeness).keys() == {node_name(node) for node in both}


def take_a_while(advance: Advance) -> None:
    time.sleep(2.0)


def test_a_cluster_without_a_core(raw: Path, tmp_path: Path) -> None:
    cluster = Nodes(cores=0)
    try:
        job = data_values(small_values(raw, tmp_path / "store")) | {"engine": cluster.engine()}
        tokenizer, _ = run("tokenizer", {"job": job})
        with pytest.raises(DeviceError, match=r"the cluster has no core for tasks; it has .*: 0 cores, 0 GPUs"):
            run("tokenize", {"job": job, "corpus": "code", "tokenizer": tokenizer})
    finally:
        cluster.end()


def test_a_stop_while_the_head_does_not_answer(raw: Path, tmp_path: Path) -> None:
    """A server that accepts connections at the address without answering."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        engine = {"kind": "ray", "address": f"127.0.0.1:{silent.getsockname()[1]}"}
        running = start(tmp_path / "asked", "train", {"job": small_values(raw, tmp_path / "store")}, 1, engine)
        wait_until(lambda: running.status() is not None or bool(stages(running.pid)))
        time.sleep(10.0)
        (stage,) = stages(running.pid)
        begun = time.monotonic()
        os.kill(stage, signal.SIGTERM)
        ended = running.wait(30.0)
        assert time.monotonic() - begun < 10
        assert "Preempted" in ended.stderr, ended
