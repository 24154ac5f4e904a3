"""Whole runs on a real S3 server: the same bytes as on disk, also when they are killed and go on elsewhere."""

import signal
from pathlib import Path
from typing import Any

import fsspec
import pytest

from tests.faults import KINDS, faulty
from tests.processes import Running, start_warm
from tests.s3 import S3Server
from tests.support import curve, final_bytes, held_out_losses, small_values, write_config
from tests.trainer.labelled_pairs import finetune_values
from tests.trainer.small_jobs import LONG, OFTEN, Finished
from trainer.common.errors import EXIT_PREEMPTED
from trainer.records.sealed import read_sealed
from trainer.store.names import FINAL, LAST, METRICS_FILE
from trainer.store.storage import Store

pytestmark = pytest.mark.slow


def upload(folder: Path, url: str) -> str:
    """Copy a folder's files into a bucket; returns their URL."""
    fs, root = fsspec.url_to_fs(url)
    for path in folder.rglob("*"):
        if path.is_file():
            fs.put_file(str(path), f"{root}/{path.relative_to(folder)}")
    return url


def has_committed(store: Store, step: int) -> bool:
    """Whether the one run of a store has committed a checkpoint of at least this step."""
    runs = store.names("runs")
    pointer = read_sealed(store, f"runs/{runs[0]}/{LAST}") if runs else None
    return bool(pointer) and pointer["step"] >= step


def elsewhere(folder: Path, server: S3Server) -> dict[str, str]:
    """The environment of a machine that has none of the files."""
    folder.mkdir()
    return {**server.env, "HOME": str(folder / "home"), "HEADRACE_CACHE": str(folder / "cache")}


def run_ended_once(
    config: Path, store: Store, step: int, server: S3Server, folder: Path, signum: signal.Signals = signal.SIGKILL
) -> None:
    """Run a job, kill it or ask it to stop after a commit of at least this step, and finish it on another machine."""

    def start(number: int) -> Running:
        return start_warm(
            folder / f"said-{number}", "trainer.__main__", config, env=elsewhere(folder / str(number), server)
        )

    expected = -signal.SIGKILL if signum == signal.SIGKILL else EXIT_PREEMPTED
    assert start(1).send_when(signum, lambda: has_committed(store, step)).status == expected
    ended = start(2).wait()
    assert ended.status == 0, ended
    assert "continuing from s3://" in ended.stderr


def final_on(store: Store) -> bytes:
    (run,) = store.names("runs")
    return store.read_bytes(f"runs/{run}/{FINAL}/model.safetensors")


def mirror(store: Store, folder: Path) -> Path:
    """A folder with the records of a bucket's one run."""
    (run,) = store.names("runs")
    (folder / "runs" / run).mkdir(parents=True)
    (folder / "runs" / run / METRICS_FILE).write_bytes(store.read_bytes(f"runs/{run}/{METRICS_FILE}"))
    return folder


@pytest.mark.deep
@pytest.mark.parametrize("signum", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.long)])
def test_a_run_on_s3_that_goes_on_elsewhere_ends_with_the_bytes_of_one_on_disk(
    raw: Path, finished: Finished, s3: S3Server, tmp_path: Path, signum: signal.Signals
) -> None:
    store = Store(s3.new_store())
    values = small_values(Path("RAW"), store.url, **LONG)
    place = upload(raw, f"{store.url}/raw")
    for corpus in values["data"]["corpora"]:
        corpus["paths"] = [path.replace("RAW", place) for path in corpus["paths"]]
    run_ended_once(write_config(tmp_path / "job.yaml", values), store, 5, s3, tmp_path, signum)
    assert final_on(store) == final_bytes(finished.store)
    records = mirror(store, tmp_path / "mirror")
    assert curve(records) == curve(finished.store)
    assert held_out_losses(records) == held_out_losses(finished.store)
    (run,) = store.names("runs")
    assert {"report.html", "lineage.json", "eval.json", "metrics.jsonl"} <= set(store.names(f"runs/{run}"))
    assert "lease.json" not in store.names(f"runs/{run}")


@pytest.mark.deep
def test_fine_tuning_on_s3_ends_with_the_bytes_of_one_on_disk(
    pairs: Path, pretrained: Path, tuned: Finished, s3: S3Server, tmp_path: Path
) -> None:
    store = Store(s3.new_store())
    values: dict[str, Any] = finetune_values(pairs, store.url, pretrained, **OFTEN)
    place = upload(pairs, f"{store.url}/raw")
    for split in ("train", "validation", "test"):
        values["data"][split] = [f"{place}/{split}.jsonl"]
    run_ended_once(write_config(tmp_path / "job.yaml", values), store, 9, s3, tmp_path)
    assert final_on(store) == final_bytes(tuned.store)
    (run,) = store.names("runs")
    for split in ("validation", "test"):
        name = f"predictions/{split}.jsonl"
        assert store.read_bytes(f"runs/{run}/{name}") == (tuned.store / tuned.run / name).read_bytes()


@pytest.mark.long
def test_a_bad_network_changes_nothing(raw: Path, finished: Finished, s3: S3Server, tmp_path: Path) -> None:
    url = s3.new_store()
    values = small_values(raw, url, **{**LONG, "training__save_every": 16})
    with faulty(s3.address, share=0.1, latency=0.05) as (address, faults):
        env = {**elsewhere(tmp_path / "machine", s3), "AWS_ENDPOINT_URL": address}
        ended = start_warm(
            tmp_path / "said", "trainer.__main__", write_config(tmp_path / "job.yaml", values), env=env
        ).wait(240)
    assert ended.status == 0, ended
    assert final_on(Store(url)) == final_bytes(finished.store)
    assert all(faults.counts[kind] for kind in KINDS), faults.counts
