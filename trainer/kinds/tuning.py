"""What the flow `finetune` does with the jobs of a kind."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from trainer.config.jobs import EvaluateJob
from trainer.records.evaluations import ChatEvaluation, FinetuneEvaluation
from trainer.records.plans import ChatPlan, FinetunePlan
from trainer.store.manifest import ArtifactRef
from trainer.store.storage import Store

TunedPlan = FinetunePlan | ChatPlan
TunedEvaluation = FinetuneEvaluation | ChatEvaluation


@dataclass(frozen=True)
class Tuning:
    """The names of a kind's stages, and what the tasks look up without one."""

    preflight: str
    encode: str
    evaluate: str
    plan: Callable[[Any, ArtifactRef, int], tuple[TunedPlan, str]]
    """The plan of a job and its data for so many ranks, with what is told of the data."""
    find: Callable[[Store, Any, str, str | None, str], TunedEvaluation | None]
    """An evaluation that was made already, of a run or of another one on this one's data."""
    harness: Callable[[Any, str], EvaluateJob | None] = lambda job, run_key: None
    """What lm-eval is to measure of the final model of a run, if the job names tasks."""
