"""Costs of data order, manifests and plans in a very large run.

The run has 15 trillion tokens in 100,000 shards, 1,024 ranks and 400 billion parameters. No tokens are created: the
real code runs those parts that do not read tokens. Figures that depend on a cluster's hardware are computed from the
rates below.
"""

import math
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import psutil

from benchmarks.measure import say
from trainer.config.training import TrainingConfig
from trainer.data.order import CorpusOrder, DataOrder
from trainer.data.shard_files import Windows
from trainer.data.shards import ENDINGS, KIND, TRAIN, VALIDATION, open_shards, record_file, shard_file
from trainer.data.step_plan import make_plan
from trainer.records.plans import StepPlan
from trainer.store.checked_files import SUM_BYTES, count_blocks, digest_stream
from trainer.store.manifest import MANIFEST, FileRecord, Input, Manifest, make_manifest, read_manifest, write_manifest
from trainer.store.names import CHECKPOINT_KIND
from trainer.store.storage import Store

T = TypeVar("T")

SHARES = {"web": 60_000, "code": 20_000, "books": 8_000, "papers": 6_000, "forums": 5_000, "reference": 1_000}
"""Shards of each corpus, 100,000 in all."""

TOKENS, HELD_OUT_TOKENS, TOKEN_BYTES, DTYPE = 150_000_000, 150, 4, "<u4"
"""Tokens of a shard; 4 bytes each, because the vocabulary has more than 65,536 tokens."""

TRAINING = TrainingConfig(epochs=1, context=8192, global_batch=2048, locality=64)
RANKS, RANKS_A_NODE = 1024, 8
WATCHED, SHARED = 2000, 200
"""Number of steps whose reads are counted, and whose samples are drawn."""

PARAMETERS, PARAMETER_BYTES = 400e9, 12
"""Bytes per parameter: the weight and AdamW's two means, in fp32."""

FLOPS = 989e12 * 0.4
"""FLOP per second and rank: an H100's dense bf16 rate, times the share that large runs reach."""

STORE_BANDWIDTH = 2e9
"""Bytes per second that a node writes to the store."""

HOST_COPY = 10e9
"""Bytes per second that a rank copies from its device to the host."""

BETWEEN_FAILURES = 3 * 3600


def timed(call: Callable[[], T]) -> tuple[T, float]:
    """A call's result, and its seconds."""
    began = time.perf_counter()
    found = call()
    return found, time.perf_counter() - began


def shard_set(name: str, shards: int) -> Manifest:
    """The manifest of a corpus with a number of shards, with all files and with digests of the right length."""
    fingerprint = f"{shards:016x}"
    sizes = {
        side: {
            "bin": tokens * TOKEN_BYTES,
            "idx": 8 * (tokens // 1000 + 2),
            "sums": SUM_BYTES * count_blocks(tokens * TOKEN_BYTES),
        }
        for side, tokens in ((TRAIN, TOKENS), (VALIDATION, HELD_OUT_TOKENS))
    }
    files = [
        FileRecord(name=shard_file(side, number, ending), size=sizes[side][ending], sha256=f"{number:064x}")
        for number in range(shards)
        for side in (TRAIN, VALIDATION)
        for ending in ENDINGS
    ]
    files += [FileRecord(name=record_file(number), size=2000, sha256=f"{number:064x}") for number in range(shards)]
    totals = dict.fromkeys(
        [
            "raw_bytes",
            "text_bytes",
            "validation_bytes",
            "validation_token_bytes",
            "bad_records",
            "validation_documents",
        ],
        0,
    )
    totals |= {
        "documents": shards * TOKENS // 1000,
        "tokens": shards * TOKENS,
        "validation_tokens": shards * HELD_OUT_TOKENS,
    }
    details = {
        "corpus": name, "dtype": DTYPE, "block_bytes": 32768, "eos_id": 0, "vocab_size": 128_256, "num_shards": shards,
        "tokenizer_sha256": "0" * 64, "shard_tokens": [TOKENS] * shards, "totals": totals, "keeps_text": True,
        "validation_digest": "0" * 32,
    }  # fmt: skip
    made = make_manifest(KIND, fingerprint, files, details)
    tokenizer = Input(key="tokenizers/bpe-0123456789abcdef", content="0" * 64)
    return made.model_copy(update={"inputs": {"tokenizer": tokenizer}})


def publish(store: Store, name: str, shards: int) -> str:
    """Write a corpus's manifest; return its key."""
    manifest = shard_set(name, shards)
    key = f"shards/{name}-{manifest.fingerprint}"
    write_manifest(store, key, manifest)
    return key


def open_all(store: Store, keys: list[str]) -> tuple[StepPlan, DataOrder]:
    """Plan and order, which each rank computes from the manifests before its first step."""
    plan = make_plan(TRAINING, [found for key in keys if (found := read_manifest(store, key, KIND))], RANKS)
    sets = [open_shards(store, key) for key in keys]
    cuts = [Windows(each.train, TRAINING.context, TRAINING.context) for each in sets]
    pairs = zip(sets, cuts, strict=True)
    orders = [CorpusOrder(TRAINING.seed, each.corpus, cut.counts, TRAINING.locality) for each, cut in pairs]
    return plan, DataOrder(TRAINING.seed, orders, [corpus.probability for corpus in plan.corpora])


def shards_met(order: DataOrder, plan: StepPlan, first: int, steps: int) -> int:
    """Shards that a node fetches in some steps; it releases a corpus's shards when it draws others from that corpus."""
    met, near = 0, dict[int, set[int]]()
    share = plan.global_batch // RANKS * RANKS_A_NODE
    for number in range(first, first + steps):
        for corpus, shards in order.shards(number * plan.global_batch, share).items():
            met += len({*shards} - near[corpus]) if corpus in near else 0
            near[corpus] = {*shards}
    return met


def reading(store: Store) -> float:
    """Print the costs of the data; return the model's seconds per step."""
    keys, written = timed(lambda: [publish(store, name, shards) for name, shards in SHARES.items()])
    size = sum(Path(store.path(f"{key}/{MANIFEST}")).stat().st_size for key in keys)
    say("manifests of all corpora", f"{size / 1e6:.0f} MB, made in {written:.1f} s")
    before = psutil.Process().memory_info().rss
    (plan, order), opened = timed(lambda: open_all(store, keys))
    taken = psutil.Process().memory_info().rss - before
    say("opening them, with plan and order, a rank", f"{opened:.1f} s, {taken / 2**20:.0f} MiB")
    length = f"{plan.total_steps:,} steps of {plan.tokens_per_step / 1e6:.1f} M tokens"
    say("the plan", f"{len(plan.model_dump_json()):,} bytes, {length}")
    for label, start in (("first", 0), ("last", plan.total_steps - SHARED)):
        numbers = range(start * plan.global_batch, (start + SHARED) * plan.global_batch, plan.global_batch)
        _, took = timed(lambda at=numbers: [order.samples(number, plan.global_batch // RANKS) for number in at])  # type: ignore[misc]
        say(f"a rank's share of a batch, at the {label} steps", f"{took / SHARED * 1e3:.1f} ms")
    step = 6 * PARAMETERS * plan.tokens_per_step / (RANKS * FLOPS)
    fetched = shards_met(order, plan, plan.total_steps // 2, WATCHED) / WATCHED
    nodes = RANKS // RANKS_A_NODE
    say("a step", f"{step:.0f} s")
    say("shards that a node fetches", f"{fetched:.2f} a step, {fetched * TOKENS * TOKEN_BYTES / step / 1e6:.1f} MB/s")
    say("requests of all nodes, two a shard", f"{2 * fetched * nodes / step:.2f} a second")
    return step


def saving(store: Store, step: float) -> None:
    """Print the costs of checkpoints and failures."""
    names = [f"{kind}-{rank:05d}.safetensors" for rank in range(RANKS) for kind in ("model", "optimizer")]
    files = [FileRecord(name=name, size=1, sha256="0" * 64) for name in names]
    manifest = make_manifest(CHECKPOINT_KIND, "0" * 16, files, {"step": 1, "scores": None, "run": "runs/large"})
    _, took = timed(lambda: write_manifest(store, "runs/large/checkpoints/step-00000001", manifest))
    say("the commit of a checkpoint of 1,024 ranks", f"{len(files):,} files, {took * 1e3:.0f} ms")
    total, rate = PARAMETERS * PARAMETER_BYTES, digest_rate()
    part = total / RANKS
    written = max(part * RANKS_A_NODE / STORE_BANDWIDTH, part / rate)
    say("a checkpoint", f"{total / 1e12:.1f} TB, {part / 1e9:.1f} GB a rank")
    say("SHA-256 of a rank's part, on one core", f"{part / rate:.1f} s at {rate / 1e9:.2f} GB/s")
    say("written behind training, at 2 GB/s a node", f"{written:.0f} s")
    stall = part / HOST_COPY
    interval = max(math.sqrt(2 * stall * BETWEEN_FAILURES), written)  # Young, "A first order approximation...", 1974
    say("the best time between saves, a failure every 3 hours", f"{interval:.0f} s, {interval / step:.1f} steps")
    lost = interval / 2 + written
    say("training lost at a failure, on average", f"{lost:.0f} s, {lost / BETWEEN_FAILURES:.1%} of the time")
    say("training stalled by copies to the host", f"{stall / interval:.1%} of the time")
    data = sum(SHARES.values()) * TOKENS * TOKEN_BYTES
    say("a rehash of all shards, by a core a rank", f"{data / 1e12:.0f} TB, {data / (RANKS * rate) / 60:.1f} min")


def digest_rate() -> float:
    """Bytes per second that one core hashes of a file in memory."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(bytes(2**28))
        file.flush()
        with open(file.name, "rb") as again:
            return 2**28 / timed(lambda: digest_stream(again))[1]


def main() -> None:
    """Print all figures."""
    print("scale: 15 trillion tokens in 100,000 shards of six corpora, 1,024 ranks, 400 B parameters")
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        store = Store(folder)
        saving(store, reading(store))


if __name__ == "__main__":
    main()
