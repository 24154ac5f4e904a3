"""When a process that waits for a stage is killed, all processes that it started end."""

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.depth import once
from tests.processes import Running, alive, being_written, command_line, descendants, name_of, start_module, wait_until
from tests.support import data_values, small_values
from tests.tasks.running import Prepared, run


def start_parent(stage: str, arguments: dict[str, Any], folder: Path, ranks: int = 1, count: int = 1) -> Running:
    """Start a process that waits for a stage, with a number of ranks and cores."""
    path = folder / "request.json"
    path.write_text(json.dumps({"stage": stage, "arguments": arguments, "ranks": ranks}))
    temporary = folder / "temporary"
    temporary.mkdir()
    return start_module(folder / "said", "tests.tasks.stage_parent", path, count=count, env={"TMPDIR": str(temporary)})


def kill_when(parent: Running, ready: Callable[[list[str]], bool]) -> dict[int, str]:
    """Kill the parent as soon as its children are ready; return the children with names and command lines."""

    def started() -> dict[int, str]:
        return {pid: f"{name_of(pid)}: {command_line(pid)}" for pid in descendants(parent.pid)}

    wait_until(lambda: parent.status() is not None or ready(list(started().values())))
    assert parent.status() is None, parent.wait()
    found = started()
    parent.send(signal.SIGKILL)
    assert parent.wait().status == -signal.SIGKILL
    return found


def assert_all_end(found: dict[int, str]) -> None:
    wait_until(lambda: not any(alive(pid) for pid in found), seconds=60.0)


def left(folder: Path) -> list[str]:
    """Remaining temporary files, except those of torch's compiler, created when torch is loaded."""
    return [path.name for path in (folder / "temporary").iterdir() if not path.name.startswith("torchinductor_")]


@pytest.mark.deep
@pytest.mark.slow
@pytest.mark.parametrize("ranks", once(2, 1))
def test_training_ends_with_the_process_that_waits_for_it(prepared: Prepared, tmp_path: Path, ranks: int) -> None:
    name = f"orphaned-{ranks}"
    job = {**prepared.values, "run": name, "training": {**prepared.values["training"], "max_steps": 100_000}}
    parent = start_parent("train", {"job": job, "data": prepared.data}, tmp_path, ranks, ranks)
    trains = Path(prepared.values["store"]) / "runs" / name / "metrics.jsonl"
    found = kill_when(parent, lambda commands: trains.exists())
    assert sum(command.startswith("stage train: ") for command in found.values()) == (1 if ranks == 1 else 3), (
        "torchrun and its ranks"
    )
    assert_all_end(found)
    assert left(tmp_path) == []


@pytest.mark.deep
def test_tokenization_workers_end_with_the_process_that_waits_for_them(raw: Path, tmp_path: Path) -> None:
    text = (raw / "docs.jsonl").read_bytes()
    for number in range(4):
        (tmp_path / f"{number}.jsonl").write_bytes(text * 1000)
    corpora = [{"name": "large", "paths": [f"{tmp_path}/*.jsonl"], "format": "jsonl"}]
    shards = {"num_shards": 4, "piece_bytes": 2**20}
    values = small_values(raw, tmp_path / "store", data__corpora=corpora, data__workers=2, data__shards=shards)
    values["data"]["tokenizer"] |= {"engine": "tokenizers", "sample_bytes": 10_000}
    job = data_values(values)
    tokenizer = run("tokenizer", {"job": job})
    parent = start_parent("tokenize", {"job": job, "corpus": "large", "tokenizer": tokenizer}, tmp_path, count=2)
    store = tmp_path / "store"
    found = kill_when(
        parent, lambda commands: sum("spawn_main" in c for c in commands) == 2 and being_written(store, "*/*.bin")
    )
    assert_all_end(found)
    assert not list(store.glob("shards/*/manifest.json"))
    assert left(tmp_path) == []
