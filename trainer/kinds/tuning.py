"""What the flow `finetune` does with the jobs of a kind."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from trainer.records.evaluations import ChatEvaluation, FinetuneEvaluation
from trainer.store.storage import Store

TunedEvaluation = FinetuneEvaluation | ChatEvaluation


@dataclass(frozen=True)
class Tuning:
    """The names of a kind's stages, and what a task looks up without one."""

    preflight: str
    evaluate: str
    find: Callable[[Store, Any, str, str | None, str], TunedEvaluation | None]
    """An evaluation that was made already, of a run or of another one on this one's data."""
