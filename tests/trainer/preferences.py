"""Small pairs of answers, and jobs of seconds that tune a model on them."""

import itertools
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from samples.pairs import documented_functions
from samples.preferences import preferences_of
from tests.support import with_changes, write_rows
from trainer.config.files import validate_job
from trainer.kinds.preference.job import PreferenceJob

FUNCTIONS = 120


def write_preferences(folder: Path, functions: int = FUNCTIONS) -> Path:
    """train.jsonl, validation.jsonl and test.jsonl: some 45, 8 and 8 pairs of several lengths."""
    documented = itertools.islice(documented_functions(), functions)
    pairs = [pair for function in documented for pair in preferences_of(function)]
    files = {"train": pairs[16:], "validation": pairs[:8], "test": pairs[8:16]}
    for name, rows in files.items():
        write_rows(folder / f"{name}.jsonl", rows)
    return folder


def preference_values(pairs: Path, store: Path | str, model: Path | str, **changes: Any) -> dict[str, Any]:
    """A job of seconds as plain values, with changes."""
    values: dict[str, Any] = {
        "store": str(store),
        "name": "preferences",
        "data": {
            "task": "preference", "name": "preferences", "source": "jsonl", "context": 256,
            **{split: [f"{pairs}/{split}.jsonl"] for split in ("train", "validation", "test")},
        },
        "model": {"pretrained": str(model)},
        "training": {"epochs": 2, "global_batch": 4, "learning_rate": 1e-3, "log_every": 1},
        "evaluation": {"batch": 4, "samples": 2, "new_tokens": 6},
    }  # fmt: skip
    return with_changes(values, changes)


def preference_job(pairs: Path, store: Path | str, model: Path | str, **changes: Any) -> PreferenceJob:
    """The same, validated."""
    return validate_job(PreferenceJob, preference_values(pairs, store, model, **changes), "test")


@torch.no_grad()
def plain_sum(model: PreTrainedModel, input_ids: torch.Tensor, answered: torch.Tensor) -> float:
    """log p of the tokens that are answered, by transformers alone; both of shape [T]."""
    told = model.eval()(input_ids=input_ids[None]).logits.double().log_softmax(-1)
    each = told[0, :-1].gather(1, input_ids[1:, None]).squeeze(1)
    return float(each[answered[1:]].sum())
