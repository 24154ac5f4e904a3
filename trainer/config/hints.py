"""What was probably meant by a key that no schema has, or by a number with a unit."""

import difflib
import re
from collections.abc import Iterator, Sequence
from typing import get_origin

from pydantic import BaseModel

from trainer.common.addresses import redacted
from trainer.config.field_types import schemas_in

OTHER_NAMES = {
    "processes": ["ranks", "gpus", "num_gpus", "n_gpus", "devices", "nproc", "num_processes", "world_size"],
    "learning_rate": ["lr", "max_lr", "peak_lr"],
    "global_batch": ["batch", "batch_size", "train_batch_size", "global_batch_size"],
    "micro_batch": ["micro_batch_size", "per_device_batch_size", "per_device_train_batch_size"],
    "max_steps": ["steps", "num_steps", "iterations", "max_iters"],
    "epochs": ["num_epochs", "num_train_epochs", "max_epochs"],
    "warmup_steps": ["warmup"],
    "schedule": ["scheduler", "lr_scheduler", "lr_schedule", "lr_scheduler_type"],
    "max_grad_norm": ["grad_clip", "clip_grad_norm", "gradient_clipping"],
    "precision": ["dtype", "torch_dtype", "bf16", "fp16", "mixed_precision"],
    "context": ["seq_len", "seq_length", "sequence_length", "block_size", "max_seq_len", "max_seq_length"],
    "max_length": ["max_seq_len", "max_seq_length", "seq_len", "sequence_length"],
    "evaluate_every": ["eval_every", "eval_steps", "eval_interval"],
    "save_every": ["save_steps", "checkpoint_every", "save_interval"],
    "log_every": ["logging_steps", "log_interval"],
    "early_stopping": ["patience", "early_stopping_patience"],
    "pretrained": ["model_name", "model_name_or_path", "base_model"],
    "text_columns": ["text_column", "text_field", "text"],
    "text_field": ["text_column", "text_columns", "column", "field"],
    "label_column": ["label", "label_field", "target"],
    "paths": ["path", "file", "files"],
    "validation": ["valid", "val", "dev", "eval"],
    "store": ["output_dir", "out_dir", "output"],
}
"""Names that other tools, or everyday speech, have for a field."""

MOST_MEANT = 2
"""Fields that a message proposes at most."""

AMOUNT = re.compile(r"\s*(\d[\d_]*(?:,\d{3})*(?:\.\d+)?(?:e\d+)?)\s*([A-Za-z%]*)\s*")
BYTES = {
    "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12, "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
    "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12,
}  # fmt: skip
SECONDS = {
    "ms": 0.001, "s": 1, "sec": 1, "second": 1, "seconds": 1, "min": 60, "mins": 60, "minute": 60, "minutes": 60, "h": 3600,
    "hour": 3600, "hours": 3600, "d": 86400, "day": 86400, "days": 86400,
}  # fmt: skip
COUNTS = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "g": 10**9, "%": 0.01}


def meant_by(schemas: Sequence[type[BaseModel]], key: str, near: Sequence[str]) -> list[str]:
    """The fields that an unknown key probably stands for: of those `near` it, by name, else of whole schemas, by path."""
    names = [field for field, others in OTHER_NAMES.items() if key in others]
    if here := [name for name in names if name in near] or difflib.get_close_matches(key, near, 1):
        return here[:1]
    paths = dict.fromkeys(path for schema in schemas for path in _paths(schema))
    there = [path for name in [key, *names] for path in paths if path.rpartition(".")[2] == name]
    least = min((path.count(".") for path in there), default=0)
    return [path for path in there if path.count(".") == least][:MOST_MEANT]


def setting_of_option(schemas: Sequence[type[BaseModel]], words: Sequence[str], options: Sequence[str]) -> str | None:
    """The `key=value` word that was meant where a setting is written as an option, `--key value`; None if none is."""
    for number, word in enumerate(words):
        name, equals, value = word.partition("=")
        if not word.startswith("--") or name in options:
            continue
        key = name.removeprefix("--").replace("-", "_")
        paths = dict.fromkeys(path for schema in schemas for path in _paths(schema))
        found = [path for path in paths if path == re.sub(r"\.\d+(?=\.|$)", ".0", key)]
        if meant := [key] if found else meant_by(schemas, key, []):
            following = words[number + 1 : number + 2]
            given = value if equals else next((each for each in following if not each.startswith("--")), "…")
            return f"{meant[0]}={redacted(given)}"
    return None


def amount_hint(field: str, value: str, whole: bool) -> str:
    """How a number with a unit is written in a field, whose name tells its own unit, and which may take whole numbers only."""
    if not (match := AMOUNT.fullmatch(value)):
        return ""
    number, unit = float(match[1].replace(",", "").replace("_", "")), match[2].lower()
    if "bytes" in field and unit in BYTES:
        told = _told("in bytes", number * BYTES[unit], whole)
        binary = _plain(number * BYTES[f"{unit[0]}ib"]) if told and unit[0] in "kmgt" and "ib" not in unit else None
        return f"{told} ({match[1]} {unit[0].upper()}iB: {binary})" if binary else told
    for own, seconds in (("seconds", 1), ("minutes", 60), ("hours", 3600), ("days", 86400)):
        if own in field and unit in SECONDS:
            return _told(f"in {own}", number * SECONDS[unit] / seconds, whole)
    if unit in COUNTS:
        return _told("written out", number * COUNTS[unit], whole)
    return "; it is a plain number, without a unit" if unit in SECONDS or unit in BYTES else ""


def _told(how: str, amount: float, whole: bool) -> str:
    """The amount as it is to be written; nothing if the field does not take it, or it is more than any field does."""
    return f"; {how} that is {_plain(amount)}" if amount < 2**53 and (amount.is_integer() or not whole) else ""


def _plain(number: float) -> str:
    return str(int(number)) if number.is_integer() else f"{number:.12g}"


def _paths(schema: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """The path of every field, entries of lists as the first."""
    for name, field in schema.model_fields.items():
        yield f"{prefix}{name}"
        many = "0." if get_origin(field.annotation) is list else ""
        for each in schemas_in(field.annotation):
            yield from _paths(each, f"{prefix}{name}.{many}")
