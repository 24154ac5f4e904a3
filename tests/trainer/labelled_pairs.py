"""Real labelled pairs, found on any machine, and small fine-tuning jobs on them."""

import itertools
import json
from pathlib import Path
from typing import Any

from samples.pairs import documented_functions, pairs_of
from trainer.config.files import validate_job
from trainer.config.labelled import FinetuneJob

FUNCTIONS = 160


def write_pairs(folder: Path) -> Path:
    """train.jsonl, validation.jsonl and the unlabelled test.jsonl: some 250, 30 and 30 pairs."""
    functions = list(itertools.islice(documented_functions(), FUNCTIONS))
    files: dict[str, list[str]] = {"train": [], "validation": [], "test": []}
    for function in functions:
        files[function.split] += [json.dumps(pair) for pair in pairs_of(function, functions)]
    folder.mkdir(parents=True, exist_ok=True)
    for name, lines in files.items():
        (folder / f"{name}.jsonl").write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return folder


def finetune_values(pairs: Path, store: Path | str, model: Path | str, **changes: Any) -> dict[str, Any]:
    """A job of seconds as plain values. Changes name their place with two underscores: `training__epochs=1`."""
    values: dict[str, Any] = {
        "store": str(store),
        "name": "pairs",
        "data": {
            "name": "pairs", "source": "jsonl", "train": [f"{pairs}/train.jsonl"],
            "validation": [f"{pairs}/validation.jsonl"],
            "test": [f"{pairs}/test.jsonl"], "text_columns": ["summary", "code"], "id_column": "id",
            "classes": ["other", "match"], "max_length": 32,
        },
        "model": {"pretrained": str(model)},
        "training": {"epochs": 2, "global_batch": 8, "learning_rate": 1e-3, "log_every": 1},
    }  # fmt: skip
    for name, value in changes.items():
        *path, key = name.split("__")
        place = values
        for part in path:
            place = place.setdefault(part, {})
        place[key] = value
    return values


def finetune_job(pairs: Path, store: Path | str, model: Path | str, **changes: Any) -> FinetuneJob:
    """The same, validated."""
    return validate_job(FinetuneJob, finetune_values(pairs, store, model, **changes), "test")
