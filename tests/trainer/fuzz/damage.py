"""Ways to damage one file of a store, each decided by chance."""

import random
from collections.abc import Callable
from pathlib import Path

from tests.trainer.fuzz.byte_damage import BYTES
from tests.trainer.fuzz.value_damage import CHAMPIONS, LINES, VALUES

Damage = Callable[[Path, str, random.Random], bool]
"""Damages the file under a key of the store at a path; returns whether there was anything to damage."""

DAMAGES: dict[str, Damage] = {**BYTES, **VALUES, **LINES, **CHAMPIONS}

ANY_FILE = tuple(BYTES)
OF_VALUES = (*BYTES, *VALUES, "change", "reseal", "reseal", "flip")
"""Values are changed more often than bytes, where there are any."""
OF_LINES = (*BYTES, "reseal", *LINES, "lose", "flip")
OF_CHAMPIONS = (*OF_VALUES, *CHAMPIONS, *CHAMPIONS)

LEFT_AS_POSSIBLE = ("delete", "reseal", "usurp")
"""What leaves a store as it could have been made: without a file, or with another record whose checksums are right."""

WITHOUT_VALUES = (".bin", ".idx", ".sums", ".arrow", ".safetensors", ".html", ".md", ".jsonl")


def suits(damage: str, key: str) -> bool:
    """Whether a file of this name has what is damaged."""
    if damage in LINES:
        return key.endswith(".jsonl")
    sealed_lines = damage == "reseal" and key.endswith("/metrics.jsonl")
    return sealed_lines or damage not in VALUES or not key.endswith(WITHOUT_VALUES)
