"""Small corpora, small jobs and functions that read a store, for tests."""

import hashlib
import json
import os
import re
import shutil
import sysconfig
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import cos, pi
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import yaml

from trainer.config.files import validate_job
from trainer.config.jobs import PipelineJob
from trainer.records.lease import HOLDS
from trainer.records.sealed import read_sealed, seal_line, write_sealed
from trainer.store.names import BEST, CONFIG, ENVIRONMENT, EPOCHS, EVALUATION, FINAL, LAST, LINEAGE, METRICS_FILE, PLAN
from trainer.store.storage import Store
from trainer.training.metrics_reader import read_records
from trainer.training.runtime import Runtime

LONG_AGO = 1_000_000_000
"""A modification time, in seconds since 1970, for files whose time does not matter."""

SMALL_MODEL: dict[str, Any] = {"model_type": "gpt2", "n_layer": 2, "n_embd": 32, "n_head": 2, "n_positions": 32}
"""Uses GPT-2's default dropout, 0.1."""

TIMED = {
    "manifest.json", "metrics.jsonl", "report.html", "README.md", "lineage.json", "environment.json", "rank-0.log",
    "rank-1.log",
}  # fmt: skip
"""Files with times; manifests are compared without them."""

NO_DROPOUT = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}


def write_corpora(folder: Path) -> Path:
    """Two small corpora of real text: code/*.py of about 16 kB, and docs.jsonl of about 8 kB."""
    library = Path(sysconfig.get_paths()["stdlib"])
    taken = 0
    (folder / "code").mkdir(parents=True)
    for path in sorted(library.glob("*.py")):
        text = path.read_bytes()
        if 500 < len(text) < 4500 and taken < 16_000:
            (folder / "code" / path.name).write_bytes(text)
            taken += len(text)
    documents, size = [], 0
    for name in sorted(topics):
        if len(topics[name]) < 1500 and size < 8_000:
            documents.append(json.dumps({"text": topics[name]}) + "\n")
            size += len(topics[name])
    (folder / "docs.jsonl").write_text("".join(documents), encoding="utf-8")
    return folder


def with_changes(values: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """A job's values with changes, whose paths are joined by two underscores: `training__max_steps=5`."""
    for name, value in changes.items():
        *path, key = name.split("__")
        place = values
        for part in path:
            place = place.setdefault(part, {})
        place[key] = value
    return values


def small_values(raw: Path, store: Path | str, **changes: Any) -> dict[str, Any]:
    """A job that takes a second, as plain values with changes."""
    values: dict[str, Any] = {
        "store": str(store),
        "name": "tiny",
        "data": {
            "corpora": [
                {"name": "code", "paths": [f"{raw}/code/*.py"], "format": "source"},
                {"name": "docs", "paths": [f"{raw}/docs.jsonl"], "format": "jsonl"},
            ],
            "tokenizer": {"vocab_size": 384},
            "shards": {"num_shards": 2, "piece_bytes": 1024},
            "validation_fraction": 0.15,
            "workers": 1,
        },
        "model": {"config": dict(SMALL_MODEL)},
        "training": {
            "max_steps": 6, "context": 32, "global_batch": 8, "learning_rate": 1e-3, "warmup_steps": 2, "log_every": 1,
        },
        "evaluation": {"during_training": 4, "prompts": ["def "], "new_tokens": 4},
    }  # fmt: skip
    return with_changes(values, changes)


def rate_at(step: int, steps: int) -> float:
    """A small job's factor of the learning rate at a step: a cosine after two steps of warm-up."""
    return step / 2 if step < 2 else 0.5 * (1 + cos(pi * (step - 2) / (steps - 2)))


def small_job(raw: Path, store: Path | str, **changes: Any) -> PipelineJob:
    """The same, validated."""
    return validate_job(PipelineJob, small_values(raw, store, **changes), "test")


def failing_first(errors: list[Exception], function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that raises these errors, one at each call, until the list is empty, and then calls another one."""

    def call(*arguments: Any, **options: Any) -> Any:
        if errors:
            raise errors.pop(0)
        return function(*arguments, **options)

    return call


def data_values(values: dict[str, Any]) -> dict[str, Any]:
    """The part of a job's values that prepares its data: a job of its own."""
    return {key: values[key] for key in ("store", "name", "data")}


def write_config(path: Path, values: dict[str, Any]) -> Path:
    """Write a job's values as a YAML file."""
    path.write_text(yaml.safe_dump(values), encoding="utf-8")
    return path


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The JSON objects of a file, one per line."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def write_rows(path: Path, rows: Iterable[Any]) -> str:
    """Write a file with one JSON value per line; return its path as text."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def only_run(store: Path) -> str:
    """The key of the only run in a store."""
    (run,) = (store / "runs").iterdir()
    return f"runs/{run.name}"


def final_bytes(store: Path) -> bytes:
    """The weights of the only run's final model."""
    return (store / only_run(store) / FINAL / "model.safetensors").read_bytes()


def records(store: Path, kind: str, run: str | None = None) -> list[dict[str, Any]]:
    """The only run's records of one kind."""
    return [record for record in read_records(Store(str(store)), run or only_run(store)) if record["kind"] == kind]


def curve(store: Path) -> list[tuple[int, float, float, float]]:
    """Step, loss, learning rate and gradient norm of every train record."""
    return [(r["step"], r["loss"], r["learning_rate"], r["grad_norm"]) for r in records(store, "train")]


def held_out_losses(store: Path) -> list[tuple[int, float]]:
    """Step and loss of every evaluation during training."""
    return [(r["step"], r["loss"]) for r in records(store, "evaluation")]


def steps_recorded(store: Path) -> int:
    """The last recorded step of the only run, else 0."""
    runs = list((store / "runs").iterdir()) if (store / "runs").is_dir() else []
    steps = [r["step"] for r in records(store, "train", f"runs/{runs[0].name}")] if runs else []
    return max(steps, default=0)


def forget_after(run: Path, step: int) -> None:
    """Take away what a run did after a step that it saved: as if it had been killed then."""
    shutil.rmtree(run / FINAL)
    for folder in (run / "checkpoints").iterdir():
        if int(folder.name.removeprefix("step-")) > step:
            shutil.rmtree(folder)
    (run / LAST).unlink()
    assert (run / "checkpoints" / f"step-{step:08d}").is_dir()


def digests(folder: Path, *parts: str) -> dict[str, str]:
    """SHA-256 of every file in a folder, or in some of its subfolders."""
    roots = [folder / part for part in parts] or [folder]
    files = sorted(path for root in roots for path in root.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def settled(folder: Path) -> Path:
    """Give raw files an old modification time, so that results of reading them are cached."""
    for path in folder.rglob("*"):
        if path.is_file():
            os.utime(path, (LONG_AGO, LONG_AGO))
    return folder


def lasting_digests(store: Path) -> dict[str, str]:
    """SHA-256 of every file of a store except holds, which every use of an artifact creates for a time."""
    return {name: digest for name, digest in digests(store).items() if not name.startswith(f"{HOLDS}/")}


def published(store: Path, named: str) -> dict[str, Any]:
    """Bytes by name, with manifests without their times; `named` is the job's name for the store."""
    found: dict[str, Any] = {
        name: digest
        for name, digest in lasting_digests(store).items()
        if Path(name).name not in TIMED and not name.startswith(("cache/", f"{only_run(store)}/tensorboard"))
    }
    for path in store.rglob("config.json"):
        text = path.read_text().replace(named, "STORE")
        found[str(path.relative_to(store))] = re.sub(r'"checksum": "[0-9a-f]+"', "", text)
    for path in store.rglob("manifest.json"):
        manifest = json.loads(path.read_text())
        files = {record["name"]: record["sha256"] for record in manifest["files"] if record["name"] not in TIMED}
        found[str(path.relative_to(store))] = (manifest["kind"], manifest["fingerprint"], manifest["details"], files)
    return found


def seal_copy(source: Store, origin: str, store: Store, run: str) -> None:
    """Seal a copied run's files for their new keys."""
    pointers = [LAST, BEST, *(f"{EPOCHS}/{name}" for name in store.names(f"{run}/{EPOCHS}"))]
    for name in [CONFIG, PLAN, ENVIRONMENT, EVALUATION, LINEAGE, *pointers]:
        if (values := read_sealed(source, f"{origin}/{name}")) is not None:
            write_sealed(store, f"{run}/{name}", values)
    store.write_bytes(f"{run}/{METRICS_FILE}", sealed_lines(f"{run}/{METRICS_FILE}", read_records(source, origin)))


def sealed_lines(key: str, records: Sequence[dict[str, Any]]) -> bytes:
    """The bytes of a file of records, in order."""
    return b"".join(seal_line(key, number, record) for number, record in enumerate(records, start=1))


def write_traps(folder: Path) -> Path:
    """Write modules with the names of the project's packages and of Python's; return the file that they write to when
    one is imported.
    """
    imported = folder / "imported"
    for name in ("deployments", "flows", "tasks", "trainer", "colorsys", "random", "statistics"):
        (folder / f"{name}.py").write_text(f"print(__file__, file=open({str(imported)!r}, 'a'))\n")
    return imported


def flipped(data: bytes, bit: int) -> bytes:
    """The same bytes but for one bit."""
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def flip_bit(path: Path, place: int | None = None) -> None:
    """Flip a bit of a file's byte, by default of that in its middle."""
    data = path.read_bytes()
    path.write_bytes(flipped(data, 8 * (len(data) // 2 if place is None else place)))


def cpu_runtime(precision: str = "fp32") -> Runtime:
    """A runtime of one rank and one thread in this process, replacing an earlier one."""
    import torch

    from trainer.training.runtime import start_runtime

    runtime = start_runtime(precision, "cpu")
    torch.set_num_threads(1)
    return runtime
