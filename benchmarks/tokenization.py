"""Speed from raw files to published shards, against `datasets.map` with the same tokenizer and number of processes."""

import json
import shutil
import statistics
import sys
import sysconfig
import tempfile
from pathlib import Path

from trainer.common.progress import silent
from trainer.config.files import load_job
from trainer.config.jobs import PrepareJob
from trainer.kinds.pretraining.kind import prepare
from trainer.records.steps import here

PAIRS = 3
COPIES = 8


def write_raw(folder: Path, copies: int = COPIES) -> int:
    """Copy the standard library's sources several times, one document per file; return their bytes."""
    root, total = Path(sysconfig.get_path("stdlib")), 0
    sources = [path for path in sorted(root.rglob("*.py")) if "site-packages" not in path.parts]
    for copy in range(copies):
        for number, path in enumerate(sources):
            try:
                text = path.read_text(encoding="utf-8")
            except UnicodeDecodeError:
                continue
            target = folder / f"{copy}-{number:05d}.txt"
            target.write_text(text, encoding="utf-8")
            total += len(text.encode())
    return total


def write_job(folder: Path, store: str) -> Path:
    """The job's file for a store."""
    values = {
        "store": str(folder / store),
        "data": {
            "corpora": [{"name": "code", "paths": [f"{folder}/raw/*.txt"]}],
            "tokenizer": {"vocab_size": 16384, "sample_bytes": 16_000_000},
            "shards": {"num_shards": 8},
            "workers": 2,
        },
    }
    path = folder / f"{store}.json"
    path.write_text(json.dumps(values))
    return path


def with_datasets(tokenizer: str, raw: str, out: str) -> None:
    """The usual code without headrace: `datasets.map`, batched, two processes, saved to disk."""
    from datasets import load_dataset
    from tokenizers import Tokenizer

    engine = Tokenizer.from_file(tokenizer)
    files = [str(path) for path in sorted(Path(raw).glob("*.txt"))]
    dataset = load_dataset("text", data_files=files, sample_by="document", split="train", cache_dir=f"{out}/cache")
    tokenized = dataset.map(
        lambda batch: {"input_ids": [encoding.ids for encoding in engine.encode_batch(batch["text"])]},
        batched=True, num_proc=2, remove_columns=["text"],
    )  # fmt: skip
    tokenized.save_to_disk(f"{out}/tokens")


def main() -> None:
    """Time both alternately, after an untimed run of each that fills the page cache and measures the memory."""
    from benchmarks.measure import run_timed, run_watched, say, spread  # loads torch, not needed by timed code

    print("tokenization: raw files to published shards, against datasets.map (same tokenizer, 2 processes)")
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as name:
        folder = Path(name)
        (folder / "raw").mkdir()
        size = write_raw(folder / "raw")
        first = load_job(PrepareJob, str(write_job(folder, "store")))
        tokenizer = f"{first.store}/{here(silent())('tokenizer', first).key}/tokenizer.json"

        def commands(number: int) -> tuple[list[str], list[str]]:
            path = write_job(folder, f"store-{number}")
            here(silent())("tokenizer", load_job(PrepareJob, str(path)))
            shutil.rmtree(folder / f"store-{number}" / "cache")  # where the result of the tokenizer search is cached
            own = ["-m", "benchmarks.tokenization"]
            return [*own, "headrace", str(path)], [
                *own,
                "datasets",
                tokenizer,
                str(folder / "raw"),
                f"{folder}/{number}",
            ]

        peaks = [run_watched(command)[1] for command in commands(0)]
        pairs = [[run_timed(command) for command in commands(number)] for number in range(1, PAIRS + 1)]
    ours, theirs = zip(*pairs, strict=True)
    say(
        f"headrace, {size / 1e6:.0f} MB in {COPIES} x the standard library",
        f"{size / 1e6 / statistics.median(ours):.1f} MB/s",
    )
    say("datasets.map", f"{size / 1e6 / statistics.median(theirs):.1f} MB/s")
    say("speed, headrace / datasets.map", spread([theirs / ours for ours, theirs in pairs]), "at least 15")
    say("peak memory, headrace (all processes)", f"{peaks[0]:.0f} MiB", "below 1024")
    say("peak memory, datasets.map", f"{peaks[1]:.0f} MiB")


if __name__ == "__main__":
    if sys.argv[1:2] == ["headrace"]:
        prepare(load_job(PrepareJob, sys.argv[2]), here(silent()))
    elif sys.argv[1:2] == ["datasets"]:
        with_datasets(*sys.argv[2:])
    else:
        main()
