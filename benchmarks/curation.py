"""Speed of curation against datatrove and against tokenizing the same text; cost of a changed file; memory.

    python -m benchmarks.curation [PYTHON]

PYTHON is the interpreter of an environment with datatrove (`make test-peers` installs one in build/peers). Without it,
that comparison is skipped.
"""

import json
import shutil
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trainer.common.progress import silent
from trainer.config.files import load_job
from trainer.config.jobs import PrepareJob
from trainer.kinds.pretraining.kind import prepare
from trainer.records.steps import here
from trainer.store.checked_files import RACY_SECONDS

PAIRS = 3
WORKERS = 2
OWN = ["-m", "benchmarks.curation"]
CURATION: dict[str, Any] = {
    "exact": {}, "near": {},
    # The bounds do not change what is computed; the papers' bounds would drop most source code.
    "filters": [
        {"kind": "gopher_repetition", "most_duplicate_5_gram_characters": 2.0},
        {"kind": "gopher_quality", "least_words_with_letter": 0.0},
    ],
}  # fmt: skip

DATATROVE = """
import sys
from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.dedup import MinhashDedupBuckets, MinhashDedupCluster, MinhashDedupFilter, MinhashDedupSignature
from datatrove.pipeline.filters import GopherQualityFilter, GopherRepetitionFilter
from datatrove.pipeline.readers import JsonlReader
from datatrove.pipeline.writers.jsonl import JsonlWriter

raw, out = sys.argv[1:]


def main():
    steps = [
        [
            JsonlReader(raw), GopherRepetitionFilter(), GopherQualityFilter(),
            JsonlWriter(f"{out}/filtered", compression=None), MinhashDedupSignature(f"{out}/signatures"),
        ],
        [MinhashDedupBuckets(f"{out}/signatures", f"{out}/buckets")],
        [MinhashDedupCluster(f"{out}/buckets", f"{out}/removed")],
        [
            JsonlReader(f"{out}/filtered"),
            MinhashDedupFilter(f"{out}/removed"),
            JsonlWriter(f"{out}/kept", compression=None),
        ],
    ]
    for tasks, pipeline in zip((2, 14, 1, 2), steps, strict=True):
        LocalPipelineExecutor(pipeline, tasks=tasks, workers=min(tasks, 2), logging_dir=f"{out}/logs{tasks}").run()


if __name__ == "__main__":
    main()
"""


def texts() -> Iterator[str]:
    """The source and text files of this installation."""
    for root in (sysconfig.get_path("stdlib"), sysconfig.get_path("purelib")):
        for path in sorted(Path(root).rglob("*")):
            if path.suffix in (".py", ".pyi", ".txt", ".md", ".rst") and path.is_file():
                try:
                    yield path.read_text(encoding="utf-8")
                except UnicodeDecodeError:
                    continue


def write_raw(folder: Path, size: int, files: int, mark: str = "") -> int:
    """Write about `size` bytes of text to files of records, repeating the texts if needed; return the bytes of text."""
    folder.mkdir(parents=True, exist_ok=True)
    written = round_number = 0
    opened = [open(folder / f"{number:05d}.jsonl", "w", encoding="utf-8") for number in range(files)]  # noqa: SIM115
    while written < size:
        for number, text in enumerate(texts()):
            if written >= size:
                break
            again = f"{mark}{round_number} " if round_number or mark else ""
            opened[number % files].write(json.dumps({"text": again + text}, ensure_ascii=False) + "\n")
            written += len(text.encode())
        round_number += 1
    for file in opened:
        file.close()
    return written


def write_job(folder: Path, raw: Path, name: str, curated: bool) -> Path:
    """Write a job that curates the text, or only tokenizes it."""
    data: dict[str, Any] = {
        "corpora": [{"name": "text", "paths": [f"{raw}/*.jsonl"], "format": "jsonl"}],
        "tokenizer": {"vocab_size": 16384, "sample_bytes": 16_000_000},
        "workers": WORKERS,
    }
    path = folder / f"{name}.json"
    path.write_text(
        json.dumps({"store": str(folder / name), "data": {**data, **({"curation": CURATION} if curated else {})}})
    )
    return path


def against_datatrove(folder: Path, python: str) -> None:
    """Curate the same text with both; datatrove also writes the kept text, as its pipelines do."""
    from benchmarks.measure import run_other, run_timed, say, spread

    size = write_raw(folder / "raw", 25_000_000, 2)
    (folder / "peer.py").write_text(DATATROVE)
    ratios = []
    for number in range(PAIRS):
        ours = run_timed([*OWN, "curate", str(write_job(folder, folder / "raw", f"store-{number}", True))])
        theirs = run_other([python, str(folder / "peer.py"), str(folder / "raw"), str(folder / f"out-{number}")])
        ratios.append(theirs / ours)
        say(f"{size / 1e6:.0f} MB: headrace, datatrove", f"{ours:.1f} s, {theirs:.1f} s")
    say("speed, headrace / datatrove", spread(ratios), "at least 10")


def against_tokenizing(folder: Path) -> None:
    """Curate a text, and tokenize the same text with a trained tokenizer."""
    from benchmarks.measure import run_timed, say, spread

    size = write_raw(folder / "raw", 200_000_000, 200)
    ratios = []
    for number in range(PAIRS):
        ours = run_timed([*OWN, "curate", str(write_job(folder, folder / "raw", f"store-{number}", True))])
        plain = write_job(folder, folder / "raw", f"plain-{number}", False)
        run_timed([*OWN, "tokenizer", str(plain)])
        theirs = run_timed([*OWN, "prepare", str(plain)])
        ratios.append(ours / theirs)
        say(f"{size / 1e6:.0f} MB: curating, tokenizing", f"{ours:.1f} s, {theirs:.1f} s")
    say("time, curating / tokenizing", spread(ratios), "at most 1.5")


def changed_file(folder: Path) -> None:
    """One changed file of 10,000, of several sizes, against the first pass."""
    from benchmarks.measure import run_timed, say

    for size in (600_000_000, 3_000_000_000, 10_000_000_000):
        raw = folder / f"raw-{size}"
        written = write_raw(raw, size, 10_000)
        command = [*OWN, "curate", str(write_job(folder, raw, f"store-{size}", True))]
        time.sleep(2 * RACY_SECONDS)  # results of younger files are not cached
        first = run_timed(command)
        with open(raw / "00007.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps({"text": "one more document, " * 20}) + "\n")
        again = run_timed(command)
        say(
            f"{written / 1e6:.0f} MB in 10,000 files: the first pass, one changed file", f"{first:.1f} s, {again:.1f} s"
        )
        say("time, changed file / first pass", f"{again / first:.3f}", "below 0.05")
        shutil.rmtree(raw)


def memory(folder: Path) -> None:
    """Peak memory of all processes together."""
    from benchmarks.measure import run_watched, say

    for megabytes in (100, 300, 1000, 3000):
        raw = folder / f"raw-{megabytes}"
        write_raw(raw, megabytes * 10**6, 20)
        job = write_job(folder, raw, f"store-{megabytes}", True)
        seconds, peak = run_watched([*OWN, "curate", str(job)])
        say(f"{megabytes} MB: time, peak memory of all processes", f"{seconds:.0f} s, {peak:.0f} MiB")


def main(python: str | None) -> None:
    print(f"curation: exact and near duplicates, Gopher's quality and repetition rules, {WORKERS} processes")
    for part in (against_tokenizing, changed_file, memory):
        with tempfile.TemporaryDirectory(prefix="headrace-bench-") as name:
            part(Path(name))
    if python is not None:
        with tempfile.TemporaryDirectory(prefix="headrace-bench-") as name:
            against_datatrove(Path(name), python)


if __name__ == "__main__":
    if sys.argv[1:2] == ["curate"]:
        here(silent())("curate", load_job(PrepareJob, sys.argv[2]))
    elif sys.argv[1:2] == ["tokenizer"]:
        here(silent())("tokenizer", load_job(PrepareJob, sys.argv[2]))
    elif sys.argv[1:2] == ["prepare"]:
        prepare(load_job(PrepareJob, sys.argv[2]), here(silent()))
    else:
        main(sys.argv[1] if len(sys.argv) > 1 else None)
