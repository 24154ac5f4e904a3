"""Validation of names, keys and digests read from a store's records, so that none leads out of the store.

A name is one plain path component. A key is a path relative to the store's root: names joined by forward slashes.
"""

import os
import re
from typing import Annotated

from pydantic import AfterValidator, Field

MAX_NAME_BYTES = 255
NAME = r"(?!\.\.?(?:/|\Z))[^/\\\0]+"
PLAIN_NAME, PLAIN_KEY = re.compile(NAME), re.compile(rf"{NAME}(?:/{NAME})*")


def plain_name(name: str) -> str:
    """Return the name; raise `ValueError` unless it is one plain path component."""
    if not PLAIN_NAME.fullmatch(name) or _too_long(name):
        raise ValueError(
            f"{_shown(name)} is not a plain file name: expected one component without / and \\, of at most "
            f"{MAX_NAME_BYTES} bytes"
        )
    return name


def plain_key(key: str) -> str:
    """Return the key; raise `ValueError` unless each of its parts is a plain name."""
    if key.isascii() and len(key) <= MAX_NAME_BYTES and PLAIN_KEY.fullmatch(key):
        return key  # fast path for nearly all keys: this runs at every file access
    try:
        for name in key.split("/"):
            plain_name(name)
    except ValueError as error:
        raise ValueError(f"{_shown(key)} is not a key of the store: {error}") from error
    return key


def is_plain_key(key: str) -> bool:
    """Whether this is a valid key, which cannot lead out of the store."""
    try:
        plain_key(key)
    except ValueError:
        return False
    return True


def _too_long(name: str) -> bool:
    try:
        return len(os.fsencode(name)) > MAX_NAME_BYTES
    except UnicodeEncodeError:  # a lone surrogate: not possible in a file name
        return True


def _shown(name: str) -> str:
    return repr(name if len(name) <= MAX_NAME_BYTES else f"{name[:60]}…")


FileName = Annotated[str, AfterValidator(plain_name)]
Key = Annotated[str, AfterValidator(plain_key)]
RunKey = Annotated[Key, Field(pattern=r"^runs/[^/]+$")]
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Count = Annotated[int, Field(ge=0, strict=True)]
"""A count of bytes, tokens, steps or the like."""
Figure = Annotated[float, Field(strict=True)]
"""A measured number."""
Share = Annotated[float, Field(strict=True, ge=0, le=1)]


FINAL, CONFIG, PLAN, ENVIRONMENT = "final", "config.json", "plan.json", "environment.json"
CHECKPOINTS, LAST, BEST, EPOCHS = "checkpoints", "checkpoint-last", "checkpoint-best", "epochs"
METRICS_FILE, EVALUATION, REPORT, LINEAGE, CARD = (
    "metrics.jsonl",
    "eval.json",
    "report.html",
    "lineage.json",
    "README.md",
)
HARNESS = "harness.json"
"""Results of lm-eval, stored next to the evaluation."""
LOGS = "logs"
TENSORBOARD = "tensorboard"
EVENTS = re.compile(r"events\.out\.tfevents\.(\d+)\.")
"""TensorBoard's file names contain the second in which the file was started."""
CHECKPOINT_KIND = "checkpoint"
FINAL_KIND = "model"
REFERENCE_KIND = "reference"
CHAMPION = "champion"
"""File in the folder models/NAME, not in a run's folder."""
