"""More shards than a process may have files open: prepared, trained on and measured on under a real limit."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support import small_values, write_config
from tests.trainer.raw_files import sources
from trainer.records.sealed import read_sealed
from trainer.store.storage import Store

SHARDS, DESCRIPTORS = 2000, 256
FILES, LINES, MEASURED = 3 * SHARDS, 4, 3000


def write_raw(folder: Path) -> Path:
    """A few files of a few lines for each shard, every line a document."""
    folder.mkdir()
    lines = [line for text in sources().values() for line in text.splitlines() if line.strip()]
    for number in range(FILES):
        some = [lines[(number * LINES + place) % len(lines)] + f"  # {number}" for place in range(LINES)]
        (folder / f"{number}.txt").write_text("\n".join(some) + "\n")
    return folder


def values_of(raw: Path, store: Path) -> dict[str, Any]:
    """Batches from all over the shards, and held-out windows from all over theirs."""
    values = small_values(
        raw, store, training__max_steps=4, training__global_batch=256, evaluation__batch=64,
        evaluation__max_windows=MEASURED,
        data__validation_fraction=0.3, data__shards={"num_shards": SHARDS, "piece_bytes": 1024}, data__workers=2,
    )  # fmt: skip
    values["data"]["corpora"] = [{"name": "code", "paths": [f"{raw}/*.txt"], "format": "lines"}]
    return values


@pytest.mark.deep
@pytest.mark.slow
def test_two_thousand_shards_are_trained_and_measured_on_with_256_file_descriptors(tmp_path: Path) -> None:
    config = write_config(tmp_path / "job.yaml", values_of(write_raw(tmp_path / "raw"), tmp_path / "store"))
    command = f'ulimit -n {DESCRIPTORS} && exec "{sys.executable}" -m trainer "{config}"'
    ended = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=280, check=False)
    assert ended.returncode == 0, ended.stderr[-3000:]
    store = Store(str(tmp_path / "store"))
    (run,) = store.names("runs")
    evaluation = read_sealed(store, f"runs/{run}/eval.json")
    held_out = [path for path in (tmp_path / "store").glob("shards/*/validation-*.bin") if path.stat().st_size > 2]
    assert len(held_out) > 4 * DESCRIPTORS
    assert evaluation is not None
    assert evaluation["total"]["counts"]["windows"] == MEASURED
