"""The records of a run, as its metrics.jsonl holds them. Readable without the libraries that wrote them."""

import json
from typing import Any

from trainer.places import METRICS
from trainer.storage import Store


def read_records(store: Store, run: str) -> list[dict[str, Any]]:
    """All whole records of a run, in order; a last line that a kill cut short is left out."""
    try:
        lines = store.read_bytes(f"{run}/{METRICS}").split(b"\n")
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in lines[:-1] if line]
