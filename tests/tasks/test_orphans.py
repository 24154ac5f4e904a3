"""When a process that waits for a stage is killed, nothing that it started lives on."""

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.processes import Running, alive, command_line, descendants, start_module, wait_until
from tests.support import small_values
from tests.tasks.test_stage import prepare, run


def start_parent(stage: str, arguments: dict[str, Any], ranks: int, folder: Path) -> Running:
    path = folder / "request.json"
    path.write_text(json.dumps({"stage": stage, "arguments": arguments, "ranks": ranks}))
    return start_module(folder / "said", "tests.tasks.stage_parent", path, count=ranks)


def kill_when(parent: Running, ready: Callable[[list[int]], bool]) -> list[int]:
    """Kill the parent as soon as what it started is ready; returns what it had started."""
    wait_until(lambda: parent.status() is not None or ready(descendants(parent.pid)))
    assert parent.status() is None, parent.wait()
    found = descendants(parent.pid)
    parent.send(signal.SIGKILL)
    assert parent.wait().status == -signal.SIGKILL
    return found


def assert_all_end(pids: list[int]) -> None:
    wait_until(lambda: not any(alive(pid) for pid in pids), seconds=60.0)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
def test_training_ends_with_the_process_that_waits_for_it(raw: Path, tmp_path: Path, ranks: int) -> None:
    values = small_values(raw, tmp_path / "store", training__max_steps=100_000)
    data = prepare(values)
    parent = start_parent("train", {"job": values, "data": data}, ranks, tmp_path)
    found = kill_when(parent, lambda started: any((tmp_path / "store").glob("runs/*/metrics.jsonl")))
    assert sum("trainer.child" in command_line(pid) for pid in found) == (1 if ranks == 1 else 3), "torchrun and its ranks"
    assert_all_end(found)


def test_tokenization_workers_end_with_the_process_that_waits_for_them(raw: Path, tmp_path: Path) -> None:
    text = (raw / "docs.jsonl").read_bytes()
    for number in range(4):
        (tmp_path / f"{number}.jsonl").write_bytes(text * 500)
    corpora = [{"name": "large", "paths": [f"{tmp_path}/*.jsonl"], "format": "jsonl"}]
    shards = {"num_shards": 4, "piece_bytes": 2**20}
    values = small_values(raw, tmp_path / "store", data__corpora=corpora, data__workers=2, data__shards=shards)
    values["data"]["tokenizer"] |= {"engine": "tokenizers", "sample_bytes": 10_000}
    job = {key: values[key] for key in ("store", "name", "data")}
    tokenizer = run("tokenizer", {"job": job})
    parent = start_parent("corpus", {"job": job, "name": "large", "tokenizer_key": tokenizer["key"]}, 2, tmp_path)

    def workers(pids: list[int]) -> list[int]:
        return [pid for pid in pids if "spawn_main" in command_line(pid)]

    staged = tmp_path / "store" / ".staging"
    found = kill_when(parent, lambda started: len(workers(started)) == 2 and any(staged.glob("*/*.bin")))
    assert len(workers(found)) == 2
    assert_all_end(found)
    assert not list((tmp_path / "store" / "shards").glob("*/manifest.json"))
