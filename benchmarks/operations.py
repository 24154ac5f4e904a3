"""Costs of nightly operation: the flow against the bare trainer, and a preparation without changes."""

import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.jobs import raw_corpora
from benchmarks.measure import run_timed, say, spread

PAIRS = 3
FILES, FILE_BYTES = 10_000, 2_000
QUICKSTART = Path("configs/quickstart.yaml")


def quickstart_seconds(module: str, store: Path) -> float:
    """Time the quickstart from raw files to its report with a module's command line."""
    return run_timed(["-m", module, str(QUICKSTART), f"store={store}"])


def overhead(folder: Path) -> None:
    """Time the flow, with a Prefect server that starts and stops with it, and the trainer alternately."""
    print("the quickstart: the flow against the bare trainer (whole processes)", flush=True)
    pairs = [
        (
            quickstart_seconds("flows.data_to_model", folder / f"flow-{pair}"),
            quickstart_seconds("trainer", folder / f"bare-{pair}"),
        )
        for pair in range(PAIRS)
    ]
    say("seconds, flow / bare", spread([flow / bare for flow, bare in pairs]), "at most 1.05, or")
    say("seconds, flow - bare", spread([flow - bare for flow, bare in pairs]), "at most 10")


def write_files(raw: Path, files: int) -> dict[str, Any]:
    """Split the sample corpus into a number of files; return the job that prepares them."""
    text = b"".join(path.read_bytes() for path in sorted(raw.rglob("*.py")))
    folder = raw.parent / f"files-{files}"
    folder.mkdir()
    for number in range(files):
        start = number * FILE_BYTES % (len(text) - FILE_BYTES)
        (folder / f"{number:05}.txt").write_bytes(b"%d\n" % number + text[start : start + FILE_BYTES])
    corpus = {"name": "files", "paths": [f"{folder}/*.txt"], "format": "text"}
    data = {"corpora": [corpus], "tokenizer": {"vocab_size": 4096}, "shards": {"num_shards": 4}}
    return {"store": str(raw.parent / f"store-{files}"), "name": "nightly", "data": data}


def no_change(folder: Path) -> None:
    """Time the unchanged nightly preparation, and one of only a hundred files to estimate the start-up."""
    print(f"the nightly preparation of {FILES:,} unchanged files (whole processes)", flush=True)
    raw, seconds = raw_corpora(folder / "raw"), {}
    for files in (100, FILES):
        job = folder / f"job-{files}.json"
        job.write_text(json.dumps(write_files(raw, files)))
        run_timed(["-m", "flows.prepare_data", str(job)])
        seconds[files] = [run_timed(["-m", "flows.prepare_data", str(job)]) for _ in range(PAIRS)]
    say("seconds of the whole run", spread(seconds[FILES]))
    work = statistics.median(seconds[FILES]) - statistics.median(seconds[100])
    say("seconds more than with a hundred files", f"{work:.2f}", "at most 10")


def main() -> None:
    """Measure both."""
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as name:
        no_change(Path(name))
        overhead(Path(name))


if __name__ == "__main__":
    main()
