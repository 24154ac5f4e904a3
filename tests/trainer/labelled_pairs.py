"""Real labelled pairs, found on any machine, and small fine-tuning jobs on them."""

import itertools
from pathlib import Path
from typing import Any

from samples.pairs import documented_functions, pairs_of
from tests.support import with_changes, write_rows
from trainer.config.files import validate_job
from trainer.config.labelled import FinetuneJob

FUNCTIONS = 160


def write_pairs(folder: Path) -> Path:
    """train.jsonl, validation.jsonl and the unlabelled test.jsonl: some 250, 30 and 30 pairs."""
    functions = list(itertools.islice(documented_functions(), FUNCTIONS))
    files: dict[str, list[dict[str, Any]]] = {"train": [], "validation": [], "test": []}
    for function in functions:
        files[function.split] += pairs_of(function, functions)
    for name, rows in files.items():
        write_rows(folder / f"{name}.jsonl", rows)
    return folder


def finetune_values(pairs: Path, store: Path | str, model: Path | str, **changes: Any) -> dict[str, Any]:
    """A job of seconds as plain values, with changes."""
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
    return with_changes(values, changes)


def finetune_job(pairs: Path, store: Path | str, model: Path | str, **changes: Any) -> FinetuneJob:
    """The same, validated."""
    return validate_job(FinetuneJob, finetune_values(pairs, store, model, **changes), "test")
