"""Shards and encoded sets built by a cluster's tasks: the same bytes, whatever happens to the nodes."""

import errno
import os
import signal
import sysconfig
import time
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.nodes import Nodes, content, prepare, processes, run, start
from tests.processes import alive, stages, wait_until
from tests.trainer.preparing import leftovers
from trainer.common.errors import DeviceError, RecordError
from trainer.common.transient import is_transient
from trainer.config.engines import RayEngine
from trainer.engines import ray_tasks as ray_tasks_module
from trainer.engines.executors import Advance
from trainer.engines.ray_tasks import ray_tasks
from trainer.store.storage import Store

SLOW: dict[str, Any] = {"vocab_size": 400, "engine": "tokenizers", "sample_bytes": 2**16}
"""A tokenizer that is slow enough to kill a node meanwhile."""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A job with a corpus of about ten megabytes in eight shards."""
    folder = Path(sysconfig.get_path("stdlib"))
    paths = [
        f"{folder}/{name}/**/*.py"
        for name in ("test/test_asyncio", "idlelib", "lib2to3", "email", "asyncio", "unittest")
    ]
    corpora = [{"name": "library", "paths": [f"{folder}/*.py", *paths], "format": "source", "max_bad_records": 100}]
    shards = {"num_shards": 8, "piece_bytes": 65536}
    return {"corpora": corpora, "tokenizer": SLOW, "shards": shards, "validation_fraction": 0.05}


@pytest.fixture(scope="module")
def local(library: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The store of the same preparation without a cluster; read-only."""
    store = tmp_path_factory.mktemp("local")
    prepare({"store": str(store), "name": "library", "data": library})
    return store


def corpus_stage(store: Path, data: dict[str, Any], engine: dict[str, Any]) -> dict[str, Any]:
    """The arguments of the tokenization stage."""
    job = {"store": str(store), "name": "library", "data": data, "engine": engine}
    tokenizer, _ = run("tokenizer", {"job": job})
    return {"job": job, "corpus": data["corpora"][0]["name"], "tokenizer": tokenizer}


def finished(store: Path) -> int:
    """The number of finished shards."""
    return len(list(store.glob("shards/*/shard-*.json")))


def test_what_a_cluster_has_done_is_shown_as_raw_bytes(
    nodes: Nodes, local: Path, library: dict[str, Any], tmp_path: Path
) -> None:
    _, seen = run("tokenize", corpus_stage(tmp_path, library, nodes.engine()))
    updates = [update for update in seen.updates if update.title == "tokenize library"]
    assert updates[-1].total is not None and updates[-1].unit == "B"
    between = [update.done for update in updates if 0 < update.done < updates[-1].total]
    assert len(between) > 1 and between == sorted(between)
    assert content(tmp_path) == content(local)
    assert leftovers(tmp_path) == []


def test_a_lost_nodes_shards_are_built_on_another(
    doomed: Nodes, local: Path, library: dict[str, Any], tmp_path: Path
) -> None:
    store = tmp_path / "store"
    running = start(tmp_path / "asked", "tokenize", corpus_stage(store, library, doomed.engine()))
    wait_until(lambda: running.status() is not None or (finished(store) >= 2 and len(doomed.workers()) > 0))
    assert finished(store) < 7 and running.status() is None, "it was killed too late"
    doomed.kill()
    ended = running.wait()
    assert ended.status == 0, ended
    assert content(store / "shards") == content(local / "shards")
    Store(str(store)).sweep()  # as the next start does
    assert leftovers(store) == []


def test_a_bad_record_breaks_off_the_other_shards(nodes: Nodes, library: dict[str, Any], tmp_path: Path) -> None:
    bad = tmp_path / "bad"
    bad.mkdir()
    (bad / "bad.py").write_bytes(b"x = '" + b"\xff" * 400_000 + b"'\n" + b"#" * 10_000_000)
    corpora = [
        {**library["corpora"][0], "paths": [*library["corpora"][0]["paths"], f"{bad}/*.py"], "max_bad_records": 0}
    ]
    arguments = corpus_stage(tmp_path / "store", {**library, "corpora": corpora}, nodes.engine())
    with pytest.raises(RecordError, match=r"bad\.py"):
        run("tokenize", arguments)
    assert finished(tmp_path / "store") < 8
    assert leftovers(tmp_path / "store") == []


def test_a_stop_breaks_off_what_runs_and_keeps_what_is_finished(
    nodes: Nodes, local: Path, library: dict[str, Any], tmp_path: Path
) -> None:
    store = tmp_path / "store"
    arguments = corpus_stage(store, library, nodes.engine())
    running = start(tmp_path / "asked", "tokenize", arguments)
    wait_until(lambda: running.status() is not None or finished(store) >= 2)
    (stage,) = stages(running.pid)
    running.send(signal.SIGTERM)
    assert running.wait(30.0).status != 0
    wait_until(lambda: not alive(stage), 30.0)
    kept = finished(store)
    assert 2 <= kept < 8
    _, seen = run("tokenize", arguments)
    assert any(f"{kept} of 8 shards are reused" in line for line in seen.lines)
    assert content(store) == content(local)


def test_a_stage_ends_where_what_its_tasks_report_to_is_lost(nodes: Nodes, tmp_path: Path) -> None:
    with (
        pytest.raises(DeviceError, match="the cluster's process that tasks and ranks report to was lost: ") as raised,
        ray_tasks(RayEngine(**nodes.engine()), Store(str(tmp_path))) as tasks,
    ):
        (actor,) = processes("ray::ProgressActor")
        actor.kill()
        wait_until(lambda: bool(tasks.done))
    assert raised.value.transient


def test_tasks_that_wait_for_room_say_so(
    nodes: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(ray_tasks_module, "WAITING_SECONDS", 3.0)
    with ray_tasks(RayEngine(**nodes.engine()), Store(str(tmp_path))) as tasks:
        assert tasks.submit(do_nothing).result(60.0) is None
        busy = [tasks.submit(keep_busy) for _ in range(2)]
        waiting = tasks.submit(do_nothing)
        wait_until(
            lambda: (
                tasks.done > 0 or "0 cores and 0 GPUs are free now; they start when resources are free" in caplog.text
            )
        )
        assert "no task has started or reported progress for a while; the cluster has" in caplog.text
        assert not any(task.done() for task in (*busy, waiting))


def do_nothing(advance: Advance) -> None:
    pass


def keep_busy(advance: Advance) -> None:
    time.sleep(600.0)


def fill_the_disk(advance: Advance) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/cache")


def lose_the_process(advance: Advance) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_errors_of_a_node_are_what_they_would_be_here(nodes: Nodes, tmp_path: Path) -> None:
    with ray_tasks(RayEngine(**nodes.engine(max_failures=0)), Store(str(tmp_path))) as tasks:
        full, lost = tasks.submit(fill_the_disk).exception(60.0), tasks.submit(lose_the_process).exception(60.0)
    assert isinstance(full, OSError) and full.errno == errno.ENOSPC and is_transient(full)
    assert "fill_the_disk" in str(full.__cause__), "where on the cluster it was raised is told too"
    assert isinstance(lost, DeviceError) and "was lost and cannot be run again" in str(lost) and is_transient(lost)
