"""The record of a run: metrics.jsonl, and the same figures for TensorBoard."""

import json
import os
from typing import Any, Self

from torch.utils.tensorboard import SummaryWriter

from trainer.records import read_records
from trainer.runs import METRICS
from trainer.storage import Store

TENSORBOARD = "tensorboard"


class RunLog:
    """Appends records to a run's metrics.jsonl.

    Records from after the step that a run resumes at are dropped first; all of them if it begins anew.
    """

    def __init__(self, store: Store, run: str, step: int) -> None:
        self._store, self._key = store, f"{run}/{METRICS}"
        kept = [record for record in read_records(store, run) if 0 < step >= record["step"]]
        store.write_bytes(self._key, "".join(json.dumps(record) + "\n" for record in kept).encode())
        self._path = store.fetch(self._key)
        self._file = open(self._path, "a", encoding="utf-8")  # noqa: SIM115 - open for the whole run
        self._board = SummaryWriter(str(store.fetch(f"{run}/{TENSORBOARD}")), purge_step=step + 1 if step else 0)

    def write(self, kind: str, step: int, **values: Any) -> None:
        """Append one record, whole."""
        self._file.write(json.dumps({"kind": kind, "step": step, **values}) + "\n")
        self._file.flush()
        for name, value in values.items():
            if isinstance(value, int | float):
                self._board.add_scalar(f"{kind}/{name}", value, step)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        self._board.close()
        if self._store.local is None:
            self._store.put(self._path, self._key)
