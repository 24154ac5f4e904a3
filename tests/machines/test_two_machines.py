"""A run on several machines, started by torchrun or by a launcher that starts each rank, like Slurm's srun."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import fsspec
import pytest

from tests import ROOT
from tests.machines.network import HUB_ADDRESS, Machine, machines, unplugged
from tests.processes import Ended, Running, start_ranks, wait_until
from tests.s3 import S3Server, s3_server
from tests.support import final_bytes, small_values, write_config
from trainer.common.errors import EXIT_BAD_INPUT, EXIT_PREEMPTED
from trainer.records.sealed import read_sealed
from trainer.store.names import FINAL, LAST
from trainer.store.storage import Store
from trainer.training.rank_watchdog import OWN_END_SECONDS, SILENT_SECONDS

pytestmark = pytest.mark.machines

PORT = "29400"
STEPS: dict[str, Any] = {"training__max_steps": 12, "training__save_every": 2}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with s3_server(tmp_path_factory.mktemp("s3"), HUB_ADDRESS) as server:
        yield server


@pytest.fixture
def values(raw: Path, server: S3Server) -> dict[str, Any]:
    """A job on a bucket that also holds its raw files."""
    store = server.new_store()
    fs, root = fsspec.url_to_fs(store)
    for path in raw.rglob("*"):
        if path.is_file():
            fs.put_file(str(path), f"{root}/raw/{path.relative_to(raw)}")
    values = small_values(Path("RAW"), store, **STEPS)
    for corpus in values["data"]["corpora"]:
        corpus["paths"] = [path.replace("RAW", f"{store}/raw") for path in corpus["paths"]]
    return values


def start(
    machine: Machine, server: S3Server, folder: Path, values: dict[str, Any], torchrun: bool = False, disk: str = "1G"
) -> Running:
    """Start one of two ranks on a machine with its own job file and a home on a disk of a size."""
    said, home = folder / f"said-{machine.number}", folder / f"home-{machine.number}"
    for each in (said, home):
        each.mkdir(parents=True, exist_ok=True)
    config = write_config(folder / f"job-{machine.number}.yaml", values)
    first = machines()[0].address
    rank = str(machine.number)
    launcher = ["torch.distributed.run", "--nnodes=2", f"--node-rank={rank}", "--nproc-per-node=1",
    f"--master-addr={first}",
                f"--master-port={PORT}", "-m"]  # fmt: skip
    by_itself = {"RANK": rank, "LOCAL_RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": first}
    env = {
        **os.environ,
        **server.env,
        "HOME": str(home),
        "HEADRACE_CACHE": str(home / "cache"),
        "PYTHONPATH": str(ROOT),
    }
    env |= {"GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "1"}
    env |= {} if torchrun else {**by_itself, "MASTER_PORT": PORT}
    command = [sys.executable, "-m", *(launcher if torchrun else []), "trainer", str(config)]
    with open(said / "stdout", "wb") as stdout, open(said / "stderr", "wb") as stderr:
        started = subprocess.Popen(machine.command(str(home), command, disk), env=env, stdout=stdout, stderr=stderr)
    return Running(started, said)


def start_all(
    server: S3Server,
    folder: Path,
    jobs: Sequence[dict[str, Any]],
    torchrun: bool = False,
    disks: Sequence[str] = ("1G", "1G"),
) -> list[Running]:
    each = zip(machines(), jobs, disks, strict=True)
    return [start(machine, server, folder, job, torchrun, disk) for machine, job, disk in each]


def wait_all(running: Sequence[Running]) -> list[Ended]:
    return [each.wait(240) for each in running]


def step_of(store: Store) -> int:
    """The step of the run's last checkpoint."""
    runs = store.names("runs")
    pointer = read_sealed(store, f"runs/{runs[0]}/{LAST}") if runs else None
    return pointer["step"] if pointer else 0


def final_on(store: Store) -> bytes:
    (run,) = store.names("runs")
    return store.read_bytes(f"runs/{run}/{FINAL}/model.safetensors")


def on_one_machine(raw: Path, folder: Path, **changes: Any) -> bytes:
    """The final weights of two ranks on one machine, from a folder."""
    config = write_config(folder / "job.yaml", small_values(raw, folder / "store", **STEPS, **changes))
    ended = wait_all(start_ranks(folder / "said", 2, "trainer.__main__", config))
    assert [each.status for each in ended] == [0, 0], ended
    return final_bytes(folder / "store")


@pytest.fixture(scope="module")
def expected(raw: Path, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return on_one_machine(raw, tmp_path_factory.mktemp("one-machine"))


def interrupted(
    server: S3Server, folder: Path, values: dict[str, Any], step: int, signum: signal.Signals
) -> list[Ended]:
    """Send a signal to the second machine's rank once a step is saved; return the results of both."""
    store, running = Store(values["store"]), start_all(server, folder, [values, values])
    wait_until(lambda: step_of(store) >= step or any(each.status() is not None for each in running))
    running[1].send(signum)
    return wait_all(running)


def completed(server: S3Server, folder: Path, values: dict[str, Any], torchrun: bool = False) -> list[Ended]:
    """Train to the end on both machines."""
    ended = wait_all(start_all(server, folder, [values, values], torchrun))
    assert [each.status for each in ended] == [0, 0], ended
    return ended


def test_torchrun_on_two_machines_trains_as_on_one(
    server: S3Server, values: dict[str, Any], expected: bytes, tmp_path: Path
) -> None:
    ended = completed(server, tmp_path, values, torchrun=True)
    assert ended[0].stdout.count("model: ") == 1 and "model: " not in ended[1].stdout, "rank 0 speaks"
    assert final_on(Store(values["store"])) == expected


def test_asking_one_machine_to_stop_ends_both_with_75_and_they_go_on_exactly(
    server: S3Server, values: dict[str, Any], expected: bytes, tmp_path: Path
) -> None:
    ended = interrupted(server, tmp_path, values, 2, signal.SIGTERM)
    assert [each.status for each in ended] == [EXIT_PREEMPTED] * 2, ended
    assert "continuing from s3://" in completed(server, tmp_path, values)[0].stderr
    assert final_on(Store(values["store"])) == expected


def test_a_machine_that_is_lost_ends_the_run_which_goes_on_exactly(
    server: S3Server, values: dict[str, Any], expected: bytes, tmp_path: Path
) -> None:
    ended = interrupted(server, tmp_path, values, 4, signal.SIGKILL)
    assert [each.status for each in ended] == [EXIT_PREEMPTED, -signal.SIGKILL], ended
    assert (
        "RankLost: rank 1 of 2 (machine-1) is lost: the process was killed, or its machine or network"
        in ended[0].stderr
    )
    assert "Traceback" not in ended[0].stderr
    completed(server, tmp_path, values)
    assert final_on(Store(values["store"])) == expected


@pytest.mark.timeout(900)
@pytest.mark.parametrize("cut", [0, 1])
def test_a_cable_that_is_pulled_ends_both_machines_which_go_on_exactly(
    cut: int, server: S3Server, values: dict[str, Any], expected: bytes, tmp_path: Path
) -> None:
    store, running = Store(values["store"]), start_all(server, tmp_path, [values, values])
    wait_until(lambda: step_of(store) >= 4 or any(each.status() is not None for each in running))
    begun = time.monotonic()
    with unplugged(machines()[cut]):
        ended = wait_all(running)
    assert time.monotonic() - begun < SILENT_SECONDS + OWN_END_SECONDS + 60, ended
    assert [each.status for each in ended] == [EXIT_PREEMPTED] * 2, ended
    assert "rank 1 of 2 (machine-1) is lost: " in ended[0].stderr
    assert "rank 0 of 2 (machine-0) is lost: " in ended[1].stderr
    assert "Traceback" not in ended[0].stderr + ended[1].stderr
    completed(server, tmp_path, values)
    assert final_on(Store(values["store"])) == expected


def test_machines_that_divide_a_model_lose_one_and_go_on_exactly(
    raw: Path, server: S3Server, values: dict[str, Any], tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    values["training"]["sharding"] = "fsdp"
    ended = interrupted(server, tmp_path, values, 4, signal.SIGKILL)
    assert ended[1].status == -signal.SIGKILL and ended[0].status not in (0, EXIT_BAD_INPUT), ended
    assert "continuing from s3://" in completed(server, tmp_path, values)[0].stderr
    store = Store(values["store"])
    assert final_on(store) == on_one_machine(raw, tmp_path_factory.mktemp("sharded"), training__sharding="fsdp")
    (run,) = store.names("runs")
    parts = [
        name
        for name in store.names(f"runs/{run}/checkpoints/step-{STEPS['training__max_steps']:08d}")
        if "-part-" in name
    ]
    assert len(parts) == 4, "of the model and of its optimizer, one from each machine"


def test_a_store_that_the_other_machine_does_not_see_is_refused(raw: Path, server: S3Server, tmp_path: Path) -> None:
    """Each machine has its own home, under the same path."""
    jobs = [small_values(raw, tmp_path / f"home-{number}" / "store") for number in (0, 1)]
    jobs[1]["store"] = jobs[0]["store"]
    ended = wait_all(start_all(server, tmp_path, jobs))
    assert ended[0].status == ended[1].status == EXIT_BAD_INPUT, ended
    assert "is not shared: rank 1 of 2 cannot see" in ended[0].stderr
    assert "Traceback" not in ended[0].stderr + ended[1].stderr


def test_machines_with_other_jobs_are_refused(server: S3Server, values: dict[str, Any], tmp_path: Path) -> None:
    other = {**values, "training": {**values["training"], "learning_rate": 2e-3}}
    ended = wait_all(start_all(server, tmp_path, [values, other]))
    assert ended[0].status == ended[1].status == EXIT_BAD_INPUT, ended
    assert "machine-1 (rank 1) differs from machine-0 (rank 0)" in ended[0].stderr
    assert "job.training.learning_rate: 0.001 -> 0.002" in ended[0].stderr
    assert not Store(values["store"]).names("shards")


def test_a_machine_whose_disk_is_too_small_for_a_checkpoint_is_refused(
    server: S3Server, values: dict[str, Any], tmp_path: Path
) -> None:
    """The second machine's disk; the first rank checks everything else."""
    ended = wait_all(start_all(server, tmp_path, [values, values], disks=["1G", "256k"]))
    assert [each.status for each in ended] == [EXIT_BAD_INPUT] * 2, ended
    for each in ended:
        assert (
            "StorageError: rank 1 of 2 (machine-1) ended with StorageError: a checkpoint of this model takes about"
            in each.stderr
        )
        assert "Traceback" not in each.stderr
    assert not Store(values["store"]).names("shards"), "it is seen before long work"
