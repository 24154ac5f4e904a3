"""Cost of the engine ray on one machine against the local engine; needs headrace[ray].

    python -m benchmarks.ray_engine [tokenization] [training]

A cluster of one node, with as many cores as tokenization and training use, is started first. Both engines run the
stages alternately, as in a flow. Tokenization: seconds of the whole stage for about 300 MB. Training: seconds per step
after warm-up, of the fastest tenth, which other work disturbs least; the seconds of the whole stage, mostly start-up,
are only printed.
"""

import logging
import os
import statistics
import sys
import sysconfig
import tempfile
import time
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from benchmarks.measure import say, spread
from benchmarks.tokenization import write_raw
from tasks.stage import run_stage
from trainer.config.engines import Engine
from trainer.store.storage import Store
from trainer.training.metrics_reader import read_records

PAIRS = 3
CORES = 2
COPIES = 10
WARM_UP = 20
"""Number of first records that are not counted."""

Engines = dict[str, dict[str, Any]]

SETTINGS = {
    "RAY_AUTH_MODE": "disabled",
    "RAY_USAGE_STATS_ENABLED": "0",
    "PYTHONPATH": str(Path.cwd()),
    "RAY_worker_niceness": "0",  # else other processes would have priority over Ray's
}
"""The node's environment."""

log = logging.getLogger(__name__)


def main(parts: list[str]) -> None:
    """Time both alternately, and print the ratios."""
    os.environ |= SETTINGS
    from ray.cluster_utils import Cluster

    logging.disable(logging.INFO)
    node = {"num_cpus": CORES, "object_store_memory": 200 * 2**20, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=node)
    engines: Engines = {"local": {"kind": "local"}, "ray": {"kind": "ray", "address": cluster.address}}
    try:
        with tempfile.TemporaryDirectory(prefix="headrace-bench-") as name:
            for part in parts or PARTS:
                PARTS[part](Path(name), engines)
    finally:
        cluster.shutdown()


def time_tokenization(folder: Path, engines: Engines) -> None:
    """Seconds of the stage."""
    (folder / "raw").mkdir()
    print(f"tokenization of {write_raw(folder / 'raw', COPIES) / 1e6:.0f} MB on {CORES} cores")
    tell(
        [
            {kind: tokenize(folder, f"{kind}-{pair}", engine) for kind, engine in engines.items()}
            for pair in range(PAIRS)
        ]
    )


def time_training(folder: Path, engines: Engines) -> None:
    """Seconds per step and of the stage."""
    print(f"a step of training on {CORES} ranks")
    data = small_data()
    trained = [
        {kind: train(folder, f"{kind}-{pair}", engine, data) for kind, engine in engines.items()}
        for pair in range(PAIRS)
    ]
    tell([{kind: step for kind, (step, _) in pair.items()} for pair in trained])
    for kind in engines:
        say(f"{kind}: seconds of the whole stage", spread([pair[kind][1] for pair in trained]))


PARTS = {"tokenization": time_tokenization, "training": time_training}


def tell(pairs: list[dict[str, float]]) -> None:
    for kind in pairs[0]:
        say(f"{kind}: milliseconds", spread([1000 * pair[kind] for pair in pairs]))
    say("ray / local", spread([pair["ray"] / pair["local"] for pair in pairs]))


def tokenize(folder: Path, name: str, engine: dict[str, Any]) -> float:
    """Seconds of the tokenization stage; the tokenizer and the raw files' records already exist."""
    corpora = [{"name": "code", "paths": [f"{folder}/raw/*.txt"]}]
    data = {
        "corpora": corpora,
        "tokenizer": {"vocab_size": 16384, "sample_bytes": 16_000_000},
        "shards": {"num_shards": 8},
    }
    job = {"store": str(folder / "tokens" / name), "data": {**data, "workers": CORES}, "engine": engine}
    tokenizer = stage("tokenizer", {"job": job})
    begun = time.perf_counter()
    stage("tokenize", {"job": job, "corpus": "code", "tokenizer": tokenizer})
    return time.perf_counter() - begun


def small_data() -> dict[str, Any]:
    """A corpus of two megabytes."""
    paths = [f"{sysconfig.get_path('stdlib')}/[a-i]*.py"]
    corpora = [{"name": "code", "paths": paths, "format": "source"}]
    return {
        "corpora": corpora,
        "tokenizer": {"vocab_size": 4096},
        "shards": {"num_shards": 2},
        "validation_fraction": 0.03,
    }


def train(folder: Path, name: str, engine: dict[str, Any], data: dict[str, Any]) -> tuple[float, float]:
    """The seconds per step of the fastest tenth, and the seconds of the whole stage."""
    model = {"model_type": "gpt2", "n_layer": 4, "n_head": 4, "n_embd": 192, "n_positions": 256}
    settings = {"max_steps": 120, "context": 256, "global_batch": 8, "log_every": 1, "processes": CORES}
    job = {
        "store": str(folder / "runs" / name), "data": data, "model": {"config": model}, "training": settings,
        "engine": engine,
    }  # fmt: skip
    preparation = {key: job[key] for key in ("store", "data")}
    tokenizer = stage("tokenizer", {"job": preparation})
    shards = stage("tokenize", {"job": preparation, "corpus": "code", "tokenizer": tokenizer})
    begun = time.perf_counter()
    made = stage("train", {"job": job, "data": {"tokenizer": tokenizer, "shards": [shards]}}, CORES, engine)
    whole = time.perf_counter() - begun
    records = [
        record for record in read_records(Store(str(folder / "runs" / name)), made["key"]) if record["kind"] == "train"
    ]
    steps = [8 * 256 / record["tokens_per_second"] for record in records[WARM_UP:]]
    return statistics.quantiles(steps, n=10)[0], whole


def stage(name: str, arguments: dict[str, Any], ranks: int = 1, engine: dict[str, Any] | None = None) -> dict[str, Any]:
    carried: Engine = TypeAdapter(Engine).validate_python(engine or {"kind": "local"})
    return run_stage(name, arguments, lambda update: None, log, ranks, carried)


if __name__ == "__main__":
    main(sys.argv[1:])
