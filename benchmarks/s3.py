"""The store on S3: transfers against boto3, training with a cold cache against a local disk, requests per step.

Uses a real server (SeaweedFS) on this machine.
"""

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import boto3
import numpy as np

from benchmarks.jobs import job, raw_corpora, run_job
from benchmarks.measure import say, spread
from tests.faults import faulty
from tests.s3 import BUCKET, S3Server, s3_server
from trainer.common.progress import silent
from trainer.config.jobs import PipelineJob
from trainer.data.shard_files import ShardFiles
from trainer.kinds.pretraining.kind import prepare
from trainer.records.steps import here
from trainer.store.checked_files import write_sums
from trainer.store.manifest import digest_file
from trainer.store.remote import TRANSFERS
from trainer.store.storage import Store

FILES, FILE_BYTES, PAIRS = 8, 32 * 2**20, 6
TRAINING_PAIRS, STEPS = 3, 60
FEW, MANY = 50, 250


def compare_transfers(folder: Path, server: S3Server) -> tuple[list[float], list[float]]:
    """The speed of publishing and fetching a shard set relative to boto3 with the same files."""
    ups, downs = [], []
    for pair in range(PAIRS):
        source = folder / f"set-{pair}"
        source.mkdir()
        for number in range(FILES):
            (source / f"shard-{number:05d}.bin").write_bytes(os.urandom(FILE_BYTES))
        (source / "manifest.json").write_bytes(b"{}")
        for path in source.glob("*.bin"):
            write_sums(path, path.with_suffix(".sums"))
        files, sums = ([digest_file(path) for path in sorted(source.glob(f"*.{ending}"))] for ending in ("bin", "sums"))
        os.environ["HEADRACE_CACHE"] = str(folder / f"cache-{pair}")
        store = Store(server.new_store())

        ups.append(
            _speed(pair, partial(store.put_folder, source, "shards/a", "manifest.json"), partial(_boto3_up, source))
        )
        shards = ShardFiles(store, "shards/a", files, sums, np.dtype("<u2"))
        downs.append(_speed(pair, partial(_fetch, shards), partial(_boto3_down, folder / f"plain-{pair}")))
    return ups, downs


def compare_training(folder: Path, server: S3Server) -> list[float]:
    """Tokens per second of trainings from S3, each with an empty cache, relative to a local disk."""
    local, remote = job(folder, max_steps=STEPS, log_every=5), _on(server, folder, max_steps=STEPS, log_every=5)
    for each in (local, remote):
        prepare(each.preparation(), here(silent()))
    ratios = []
    for pair in range(TRAINING_PAIRS):
        os.environ["HEADRACE_CACHE"] = str(folder / f"cold-{pair}")
        ratios.append(_rate(remote, f"s3-{pair}") / _rate(local, f"disk-{pair}"))
    return ratios


def requests_a_step(folder: Path, server: S3Server) -> tuple[float, float]:
    """Requests and listings per training step: those of a long run minus those of a short one."""
    counts = []
    with faulty(server.address, share=0, latency=0) as (address, faults):
        os.environ["AWS_ENDPOINT_URL"] = address
        for steps in (FEW, MANY):
            faults.lines.clear()
            run_job(_on(server, folder, max_steps=steps), "trainer", f"steps-{steps}")
            listings = sum(b"list-type" in line or b"?uploads" in line for line in faults.lines)
            counts.append((len(faults.lines), listings))
        os.environ["AWS_ENDPOINT_URL"] = server.address
    (few, listed_few), (many, listed_many) = counts
    return (many - few) / (MANY - FEW), (listed_many - listed_few) / (MANY - FEW)


def _on(server: S3Server, folder: Path, **training: Any) -> PipelineJob:
    return job(folder, **training).model_copy(update={"store": f"s3://{BUCKET}/benchmark"})


def _rate(bench: PipelineJob, run: str) -> float:
    """Tokens per second over all steps, including waits for data."""
    records = [record for record in run_job(bench, "trainer", run) if record["kind"] == "train"]
    return statistics.harmonic_mean([float(record["tokens_per_second"]) for record in records])


def _boto3_up(folder: Path) -> None:
    client = boto3.client("s3")
    with ThreadPoolExecutor(TRANSFERS) as pool:
        list(
            pool.map(lambda path: client.upload_file(str(path), BUCKET, f"plain/{path.name}"), sorted(folder.iterdir()))
        )


def _boto3_down(folder: Path) -> None:
    folder.mkdir()
    client = boto3.client("s3")
    names = [f"shard-{number:05d}.bin" for number in range(FILES)]
    with ThreadPoolExecutor(TRANSFERS) as pool:
        list(pool.map(lambda name: client.download_file(BUCKET, f"plain/{name}", str(folder / name)), names))


def _fetch(shards: ShardFiles) -> None:
    shards.use(range(FILES))
    for number, length in enumerate(shards.lengths):
        shards.read(number, length - 1, length)


def _speed(pair: int, ours: Callable[[], object], theirs: Callable[[], object]) -> float:
    """Our speed relative to theirs; they begin every second pair."""
    seconds = {work: _timed(work) for work in ([ours, theirs] if pair % 2 else [theirs, ours])}
    return seconds[theirs] / seconds[ours]


def _timed(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def main() -> None:
    """Measure all three."""
    print("S3: transfers, training, requests, all against one server on this machine", flush=True)
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as name:
        folder = Path(name)
        (folder / "s3").mkdir()
        with s3_server(folder / "s3") as server:
            ups, downs = compare_transfers(folder, server)
            say("publishing 8 files of 32 MiB, speed / boto3 in parallel", spread(ups), "at least 0.9")
            say("fetching them, verified, speed / boto3 in parallel", spread(downs), "at least 0.9")
            raw_corpora(folder / "raw")
            say(
                "training tokens/s, S3 with a cold cache / local disk",
                spread(compare_training(folder, server)),
                "at least 0.95",
            )
            requests, listings = requests_a_step(folder, server)
            say("requests per training step", f"{requests:.3f}")
            say("listings per training step", f"{listings:.3f}", "0")


if __name__ == "__main__":
    main()
