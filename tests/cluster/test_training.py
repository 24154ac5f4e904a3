"""Ranks as workers of a cluster: the same weights and samples, whatever happens to the nodes."""

import os
import re
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.nodes import Nodes, content, prepare, processes, run, start
from tests.processes import stages, wait_until
from tests.support import NO_DROPOUT, SMALL_MODEL, curve, records, small_values, steps_recorded
from trainer.common.errors import RunError
from trainer.config.engines import RayEngine
from trainer.engines.ray_cluster import HEAD_SECONDS, joined
from trainer.engines.ray_ranks import GONE_SECONDS
from trainer.records.lease import STALE_SECONDS
from trainer.records.sealed import read_sealed
from trainer.store.names import PLAN
from trainer.store.storage import Store

TOLERANCE = 2e-4
"""Tolerance of losses in nats, as for one rank against two without a cluster (tests/trainer/training/test_ranks.py)."""

SETTINGS: dict[str, Any] = {
    "training__max_steps": 400, "training__save_every": 20, "training__evaluate_every": 100, "training__processes": 2,
    "training__learning_rate": 1e-4, "model__config": {**SMALL_MODEL, **NO_DROPOUT},
}  # fmt: skip


SLOW: dict[str, Any] = {
    "training__max_steps": 500, "training__evaluate_every": 500, "training__global_batch": 16,
    "model__config": {**SMALL_MODEL, **NO_DROPOUT, "n_layer": 4, "n_embd": 128},
}  # fmt: skip
"""Settings of a run during which nodes can leave and join."""


@pytest.fixture(scope="module")
def local(raw: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a run on two ranks of this machine; read-only."""
    store = tmp_path_factory.mktemp("local") / "store"
    values = small_values(raw, store, **SETTINGS)
    run("train", {"job": values, "data": prepare(values)}, ranks=2)
    return store


@pytest.fixture
def own(local: Path, tmp_path: Path) -> Path:
    """A new store with the data and without a run."""
    return Path(shutil.copytree(local, tmp_path / "store", ignore=shutil.ignore_patterns("runs")))


def training(raw: Path, store: Path, engine: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """The arguments of the training stage."""
    values = small_values(raw, store, **{**SETTINGS, **changes})
    return {"job": {**values, "engine": engine}, "data": prepare(values)}


def _steps(store: Path) -> int:
    """The last recorded step of the only run, once it has a checkpoint."""
    return steps_recorded(store) if any(store.glob("runs/*/checkpoint-last")) else 0


def test_two_workers_train_the_weights_of_two_local_ranks(nodes: Nodes, raw: Path, local: Path, own: Path) -> None:
    result, seen = run("train", training(raw, own, nodes.engine()), ranks=2, on=nodes.engine())
    assert not result["reused"]
    assert content(own) == content(local)
    assert curve(own) == curve(local)
    assert any(line.startswith("[rank 0] step 20: checkpoint") for line in seen.lines)
    assert [update.done for update in seen.updates if update.title == "train"][-1] == 400
    assert (own / result["key"] / "logs" / "rank-1.log").exists()


def test_training_goes_on_with_fewer_workers_and_then_with_more(doomed: Nodes, raw: Path, tmp_path: Path) -> None:
    here, store = tmp_path / "here", tmp_path / "store"
    values = small_values(raw, here, **{**SETTINGS, **SLOW})
    run("train", {"job": values, "data": prepare(values)}, ranks=2)
    engine = doomed.engine(min_workers=1, resize_seconds=2.0)
    running = start(tmp_path / "asked", "train", training(raw, store, engine, **SLOW), 2, engine)
    wait_until(lambda: running.status() is not None or _steps(store) > 50)
    doomed.kill()
    before = _steps(store)
    wait_until(lambda: running.status() is not None or _steps(store) > before + 20)
    doomed.add()
    ended = running.wait(300.0)
    assert ended.status == 0, ended
    assert re.findall(r"(\d) of the cluster's workers start", ended.stderr) == ["2", "1", "2"], ended
    found, expected = curve(store), curve(here)
    assert [step for step, *_ in found] == [step for step, *_ in expected], (
        "no step is lost, and none is recorded twice"
    )
    assert [rate for *_, rate, _ in found] == [rate for *_, rate, _ in expected]
    for mine, other in zip(found, expected, strict=True):
        assert mine[1] == pytest.approx(other[1], abs=TOLERANCE)


def test_a_stop_saves_and_running_it_again_continues(
    nodes: Nodes, raw: Path, local: Path, own: Path, tmp_path: Path
) -> None:
    arguments = training(raw, own, nodes.engine())
    running = start(tmp_path / "asked", "train", arguments, 2, nodes.engine())
    wait_until(lambda: running.status() is not None or _steps(own) > 40)
    running.send(signal.SIGTERM)
    running.wait(60.0)
    wait_until(lambda: not list(own.glob("runs/*/lease.json")), 60.0)
    stopped = steps_recorded(own)
    assert 40 < stopped < 400
    last = read_sealed(Store(str(own)), f"runs/{next(own.glob('runs/*')).name}/checkpoint-last")
    assert last is not None and last["step"] >= stopped
    run("train", arguments, ranks=2, on=nodes.engine())
    assert content(own / "runs") == content(local / "runs")


def test_an_error_of_a_rank_is_raised_once_and_is_not_tried_again(
    nodes: Nodes, raw: Path, own: Path, caplog: pytest.LogCaptureFixture
) -> None:
    arguments = training(raw, own, nodes.engine())
    plan = read_sealed(Store(str(own)), PLAN) or {}
    expected = {
        "global_batch": 8, "ranks": 2, "micro_batch": 4, "accumulation": 1, "steps_per_epoch": 3, "total_steps": 7,
        "warmup_steps": 0, "corpora": [], "windows": 24, "tokens_per_step": 256, **plan,
    }  # fmt: skip
    with pytest.raises(RunError, match="step plan differs from the one that it was given"):
        run("train", {**arguments, "expected": expected}, ranks=2, on=nodes.engine())
    assert caplog.text.count("workers start") == 1
    assert not records(own, "train") if any(own.glob("runs/*")) else True


def test_a_job_that_is_stopped_before_its_ranks_begin_is_not_begun(
    nodes: Nodes, raw: Path, own: Path, tmp_path: Path
) -> None:
    running = start(tmp_path / "asked", "train", training(raw, own, nodes.engine()), 2, nodes.engine())
    time.sleep(8.0)
    running.send(signal.SIGTERM)
    running.wait(60.0)
    wait_until(lambda: not list(own.glob("runs/*/lease.json")), 60.0)
    assert not list(own.glob("runs/*/final/manifest.json"))


def keep_busy() -> None:
    time.sleep(600.0)


@pytest.fixture
def occupied(nodes: Nodes) -> Iterator[None]:
    """Another program uses the cores of all nodes."""
    with joined(RayEngine(**nodes.engine())) as cluster:
        held = [cluster.ray.remote(num_cpus=1, max_retries=0)(keep_busy).remote() for _ in range(2)]
        wait_until(lambda: not cluster.ray.available_resources().get("CPU", 0))
        yield
        del held


def test_a_stage_that_waits_for_room_says_so_and_heeds_a_stop(
    nodes: Nodes, raw: Path, own: Path, occupied: None, tmp_path: Path
) -> None:
    running = start(tmp_path / "asked", "train", training(raw, own, nodes.engine()), 2, nodes.engine())
    wait_until(lambda: running.status() is not None or "no rank has started" in running.output()[1])
    assert "of which 0 cores and 0 GPUs are free now" in running.output()[1]
    (stage,) = stages(running.pid)
    begun = time.monotonic()
    os.kill(stage, signal.SIGTERM)
    ended = running.wait(60.0)
    assert time.monotonic() - begun < GONE_SECONDS + 10
    assert "Preempted" in ended.stderr, ended


def test_a_run_whose_stage_is_killed_is_taken_over_at_once(
    nodes: Nodes, raw: Path, local: Path, own: Path, tmp_path: Path
) -> None:
    arguments = training(raw, own, nodes.engine())
    running = start(tmp_path / "asked", "train", arguments, 2, nodes.engine())
    wait_until(lambda: running.status() is not None or _steps(own) > 40)
    (stage,) = stages(running.pid)
    os.kill(stage, signal.SIGKILL)
    running.wait(60.0)
    assert list(own.glob("runs/*/lease.json")), "it was killed too late"
    begun = time.monotonic()
    _, seen = run("train", arguments, ranks=2, on=nodes.engine())
    assert any("continuing from" in line for line in seen.lines), seen.lines
    assert time.monotonic() - begun < STALE_SECONDS
    assert content(own / "runs") == content(local / "runs")


def test_a_stage_ends_with_its_ranks_where_what_they_report_to_is_lost(
    nodes: Nodes, raw: Path, own: Path, tmp_path: Path
) -> None:
    running = start(
        tmp_path / "asked", "train", training(raw, own, nodes.engine(), training__max_steps=4000), 2, nodes.engine()
    )
    wait_until(lambda: running.status() is not None or _steps(own) > 20)
    (actor,) = processes("ray::ProgressActor")
    actor.kill()
    ended = running.wait(60.0)
    assert "DeviceError: the cluster's process that tasks and ranks report to was lost: " in ended.stderr, ended
    wait_until(lambda: not processes("ray::RayTrainWo"))


def test_a_lost_head_ends_the_stage_and_its_ranks(doomed: Nodes, raw: Path, own: Path, tmp_path: Path) -> None:
    arguments = training(raw, own, doomed.engine(), training__max_steps=40000)
    running = start(tmp_path / "asked", "train", arguments, 2, doomed.engine())
    wait_until(lambda: running.status() is not None or _steps(own) > 20)
    doomed.kill_head()
    ended = running.wait(HEAD_SECONDS + 30.0)
    assert f"DeviceError: the head of the Ray cluster at {doomed.address} no longer answers (" in ended.stderr, ended
    wait_until(lambda: not processes("ray::RayTrainWo"))


def test_a_sharded_model_trains_as_on_local_ranks(nodes: Nodes, raw: Path, tmp_path: Path) -> None:
    short = {
        "training__sharding": "fsdp",
        "training__max_steps": 12,
        "training__save_every": 4,
        "training__evaluate_every": 6,
    }
    here, there = tmp_path / "here", tmp_path / "there"
    values = small_values(raw, here, **{**SETTINGS, **short})
    run("train", {"job": values, "data": prepare(values)}, ranks=2)
    run("train", training(raw, there, nodes.engine(), **short), ranks=2, on=nodes.engine())
    assert content(there) == content(here) != {}
