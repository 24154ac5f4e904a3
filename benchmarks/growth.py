"""How time grows with the size of the input: `python -m benchmarks.growth [PART ...]`.

Each part does the same work at four sizes and prints the seconds and an exponent: time is proportional to size to that
power. It is fitted to all four sizes (least squares of the logarithms), and to the last two, where constant costs weigh
least. Exits with 1 if an exponent of the last two exceeds `ALLOWED`, which leaves a margin for a noisy machine.
"""

import json
import math
import random
import shutil
import string
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.curation import CURATION
from benchmarks.jobs import job, raw_corpora
from benchmarks.scale import open_all, publish, timed
from tests.trainer.labelled_data import bert_folder
from trainer.common.progress import silent
from trainer.config.jobs import GarbageJob, PrepareJob
from trainer.config.labelled import FinetuneJob
from trainer.data.order import CorpusOrder, DataOrder
from trainer.jobs import train
from trainer.kinds.pretraining.kind import prepare
from trainer.records.run_names import find_run_name
from trainer.records.sealed import read_sealed, seal_line, unseal_line, write_sealed
from trainer.records.steps import here
from trainer.registry.garbage import collect
from trainer.registry.listing import find_runs
from trainer.store.checked_files import RACY_SECONDS
from trainer.store.storage import Store

ALLOWED = 1.15

WORDS = 20_000
"""Synthetic words for texts; the first ones are the most frequent, as in a language."""

BATCH = 256

Seconds = dict[str, float]


class Part(NamedTuple):
    """What grows, its sizes, and a function that measures the seconds of each operation at one size, in a folder."""

    of: str
    sizes: Sequence[int]
    measure: Callable[[Path, int], Seconds]


def texts(size: int) -> Iterator[str]:
    """Endless different texts of about the given bytes each."""
    draw = random.Random(1)
    words = np.array(["".join(draw.choices(string.ascii_lowercase, k=draw.randint(2, 9))) for _ in range(WORDS)])
    numbers = np.random.default_rng(1)
    while True:
        yield " ".join(words[(WORDS * numbers.random(max(1, size // 7)) ** 3).astype(int)])


def write_documents(raw: Path, documents: int, size: int, files: int) -> None:
    """Write documents of a size into files of records; one in ten is an earlier document with another beginning."""
    raw.mkdir()
    made, written = texts(size), list[str]()
    with_copies = (
        f"{number} {written[number // 2]}" if number % 10 == 9 else next(made) for number in range(documents)
    )
    for number, text in enumerate(with_copies):
        written.append(text)
        with open(raw / f"{number % files:05}.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps({"text": text}) + "\n")


def write_files(raw: Path, files: int, size: int) -> None:
    """Write files of a size with one text each."""
    raw.mkdir()
    for number, text in zip(range(files), texts(size), strict=False):
        (raw / f"{number:06}.txt").write_text(f"{text}\n")


def preparation(folder: Path, form: str, ending: str, **data: Any) -> PrepareJob:
    """A job on the files in the folder's `raw`."""
    corpus = {"name": "text", "paths": [f"{folder}/raw/*.{ending}"], "format": form}
    values = {"corpora": [corpus], "tokenizer": {"vocab_size": 4096, "sample_bytes": 4_000_000}, "workers": 2, **data}
    return PrepareJob.model_validate({"store": str(folder / "store"), "data": values})


def prepared(wanted: PrepareJob, changed: Path) -> Seconds:
    """Time the first preparation, one without changes, and one after a file has changed."""
    time.sleep(2 * RACY_SECONDS)  # younger files are read again each time
    work = partial(prepare, wanted, here(silent()))
    first, again = timed(work)[1], timed(work)[1]
    with open(changed, "a", encoding="utf-8") as file:
        file.write(json.dumps({"text": "one more"}) + "\n")
    return {"prepare": first, "again, no changes": again, "again, one file changed": timed(work)[1]}


def of_bytes(folder: Path, megabytes: int) -> Seconds:
    write_files(folder / "raw", megabytes, 10**6)
    return prepared(preparation(folder, "text", "txt"), folder / "raw" / "000000.txt")


def of_files(folder: Path, files: int) -> Seconds:
    write_files(folder / "raw", files, 1000)
    return prepared(preparation(folder, "text", "txt"), folder / "raw" / "000000.txt")


def of_documents(folder: Path, documents: int) -> Seconds:
    write_documents(folder / "raw", documents, 200, 8)
    return prepared(preparation(folder, "jsonl", "jsonl"), folder / "raw" / "00000.jsonl")


def of_examples(folder: Path, examples: int) -> Seconds:
    """Time the encoding of labelled texts."""
    source = texts(60)
    for name, many in (("train", examples), ("validation", 100)):
        rows = ({"text": next(source), "label": number % 2} for number in range(many))
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    files = {name: [str(folder / f"{name}.jsonl")] for name in ("train", "validation")}
    values = {
        "store": str(folder / "store"), "name": "text",
        "data": {"name": "text", "source": "jsonl", "text_columns": ["text"], **files},
        "model": {"pretrained": str(bert_folder(folder / "bert"))},
        "training": {"epochs": 1, "global_batch": 8},
    }  # fmt: skip
    return {"encode": timed(partial(here(silent()), "encode", FinetuneJob.model_validate(values)))[1]}


def of_decisions(folder: Path, documents: int) -> Seconds:
    write_documents(folder / "raw", documents, 1000, 100)
    time.sleep(2 * RACY_SECONDS)
    curation = {"exact": {}, "near": {}, "filters": CURATION["filters"][:1]}
    wanted = preparation(folder, "jsonl", "jsonl", curation=curation)
    curate = partial(here(silent()), "curate", wanted)
    first, again = timed(curate)[1], timed(curate)[1]
    with open(folder / "raw" / "00000.jsonl", "a", encoding="utf-8") as file:
        file.write(json.dumps({"text": next(texts(1000))}) + "\n")
    return {"curate": first, "again, no changes": again, "again, one file changed": timed(curate)[1]}


def of_shards(folder: Path, shards: int) -> Seconds:
    store = Store(str(folder))
    key, published = timed(lambda: publish(store, "text", shards))
    (plan, order), opened = timed(lambda: open_all(store, [key]))
    return {
        "publish a manifest": published,
        "open, plan and order": opened,
        "a batch in the middle": drawn(order, plan.total_steps // 2),
    }


def drawn(order: DataOrder, step: int, ranks: int = 1) -> float:
    """The seconds of a rank for its share of a step's batch, after warm-up."""
    order.samples(step * BATCH, BATCH // ranks)
    rounds = 50
    return timed(lambda: [order.samples((step + each) * BATCH, BATCH // ranks) for each in range(rounds)])[1] / rounds


def made_order() -> DataOrder:
    """Time the order of two corpora with 2**31 windows each."""
    orders = [CorpusOrder(1, name, [2**21] * 2**10, 64) for name in ("code", "docs")]
    return DataOrder(1, orders, [0.3, 0.7])


def of_steps(folder: Path, step: int) -> Seconds:
    def resume() -> DataOrder:
        order = made_order()
        order.samples(step * BATCH, BATCH)
        return order

    order, resumed = timed(resume)
    return {"resume at this step": resumed, "a batch from there": drawn(order, step)}


def of_ranks(folder: Path, ranks: int) -> Seconds:
    return {"a rank's share of a batch": drawn(made_order(), 10**6, ranks)}


def of_runs(folder: Path, runs: int) -> Seconds:
    raw_corpora(folder / "raw")
    tiny = {"model_type": "gpt2", "n_layer": 1, "n_head": 2, "n_embd": 32, "n_positions": 64, "vocab_size": 8192}
    wanted = job(folder, tiny, max_steps=4, context=64, warmup_steps=0)
    train(wanted)
    store = Store(wanted.store)
    (name,) = store.names("runs")
    for number in range(1, runs):
        copy_run(store, f"runs/{name}", f"runs/{number:06}-copy")
    look = GarbageJob(store=wanted.store, older_than_days=0)
    return {
        "list": timed(lambda: find_runs(store))[1],
        "search for garbage": timed(lambda: list(collect(look)))[1],
        "find one by its prefix": timed(lambda: find_run_name(store, f"{runs - 1:06}"))[1],
        "train, all finished": timed(lambda: train(wanted))[1],
    }


def copy_run(store: Store, run: str, key: str) -> None:
    """Copy a run's records and files under another name; sealed files are sealed again for their new keys."""
    old, new = Path(store.path(run)), Path(store.path(key))
    shutil.copytree(old, new)
    for path in filter(Path.is_file, new.rglob("*")):
        place = str(path.relative_to(new))
        if path.name == "metrics.jsonl":
            lines = map(unseal_line, (old / place).read_bytes().splitlines())
            path.write_bytes(
                b"".join(seal_line(f"{key}/{place}", number, each) for number, each in enumerate(lines, 1))
            )
        elif path.parent == new and path.read_bytes().startswith(b"{"):
            path.unlink()
            write_sealed(store, f"{key}/{place}", read_sealed(store, f"{run}/{place}") or {})


PARTS: Mapping[str, Part] = {
    "bytes": Part("MB of text", (16, 64, 256, 1024), of_bytes),
    "files": Part("files of 1 kB", (1000, 4000, 16_000, 64_000), of_files),
    "documents": Part("documents of 200 bytes", (16_000, 64_000, 256_000, 1_024_000), of_documents),
    "examples": Part("labelled examples", (8000, 32_000, 128_000, 512_000), of_examples),
    "decisions": Part("curated documents of 1 kB", (2000, 8000, 32_000, 128_000), of_decisions),
    "shards": Part("shards", (100, 1000, 10_000, 100_000), of_shards),
    "steps": Part("finished steps", (10**3, 10**5, 10**7, 10**9), of_steps),
    "ranks": Part("ranks", (1, 2, 4, 8), of_ranks),
    "runs": Part("runs in a store", (10, 100, 1000, 10_000), of_runs),
}


def exponents(sizes: Sequence[int], seconds: Sequence[float]) -> tuple[float, float]:
    """Exponents of time over size: fitted to all sizes, and to the last two."""
    x, y = np.log(sizes), np.log(seconds)
    return float(np.polyfit(x, y, 1)[0]), float((y[-1] - y[-2]) / (x[-1] - x[-2]))


def main(*names: str) -> int:
    """Print a table per part; return 1 if a time grows faster than its input."""
    worst = -math.inf
    for name in names or PARTS:
        part, found = PARTS[name], list[Seconds]()
        for size in part.sizes:
            with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
                found.append(part.measure(Path(folder), size))
        print(f"\nseconds, by {part.of:<36}{''.join(f'{size:>14,}' for size in part.sizes)}   fitted  last two")
        for what in found[0]:
            seconds = [each[what] for each in found]
            fitted, last = exponents(part.sizes, seconds)
            worst = max(worst, last)
            print(f"  {what:<46}{''.join(f'{each:14.4f}' for each in seconds)}{fitted:9.2f}{last:10.2f}", flush=True)
    return int(worst > ALLOWED)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
