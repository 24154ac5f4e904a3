"""Names and digests that come from a store's records: what they may be, so that none leads out of the store.

A name is one plain component. A key is such names with forward slashes between them: the way to a file from the store's
root.
"""

import os
import re
from typing import Annotated

from pydantic import AfterValidator, Field

MAX_NAME_BYTES = 255
NAME = r"(?!\.\.?(?:/|\Z))[^/\\\0]+"
PLAIN_NAME, PLAIN_KEY = re.compile(NAME), re.compile(rf"{NAME}(?:/{NAME})*")


def plain_name(name: str) -> str:
    """The name itself. Raises `ValueError` unless it can only be a file right in its folder."""
    if not PLAIN_NAME.fullmatch(name) or _too_long(name):
        raise ValueError(
            f"{_shown(name)} is no plain file name: expected one component without / and \\, of at most "
            f"{MAX_NAME_BYTES} bytes"
        )
    return name


def plain_key(key: str) -> str:
    """The key itself. Raises `ValueError` unless each of its parts is a plain name."""
    if key.isascii() and len(key) <= MAX_NAME_BYTES and PLAIN_KEY.fullmatch(key):
        return key  # as nearly all are; every use of a file comes by here
    try:
        for name in key.split("/"):
            plain_name(name)
    except ValueError as error:
        raise ValueError(f"{_shown(key)} leads out of the store or is no key: {error}") from error
    return key


def is_plain_key(key: str) -> bool:
    """Whether it can be the key of something in a store, and no path to elsewhere."""
    try:
        plain_key(key)
    except ValueError:
        return False
    return True


def _too_long(name: str) -> bool:
    try:
        return len(os.fsencode(name)) > MAX_NAME_BYTES
    except UnicodeEncodeError:  # half of a surrogate pair: no file can have that name
        return True


def _shown(name: str) -> str:
    return repr(name if len(name) <= MAX_NAME_BYTES else f"{name[:60]}…")


FileName = Annotated[str, AfterValidator(plain_name)]
Key = Annotated[str, AfterValidator(plain_key)]
RunKey = Annotated[Key, Field(pattern=r"^runs/[^/]+$")]
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Count = Annotated[int, Field(ge=0, strict=True)]
"""How many of something there are: bytes, tokens, steps."""
Figure = Annotated[float, Field(strict=True)]
"""A number that was measured."""
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
"""What lm-eval measured, beside the evaluation."""
LOGS = "logs"
TENSORBOARD = "tensorboard"
CHECKPOINT_KIND = "checkpoint"
FINAL_KIND = "model"
REFERENCE_KIND = "reference"
CHAMPION = "champion"
"""In the folder of a name of models, not of a run."""
