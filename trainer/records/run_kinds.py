"""How the runs of each kind are recorded in a store, and of which kind a record that is read back is: one entry a kind.

What is done for a kind of job is said in trainer/kinds/, whose entries name these.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainer.config.chat import ChatJob
from trainer.config.jobs import PipelineJob
from trainer.config.labelled import FinetuneJob
from trainer.records.plans import ChatPlan, FinetunePlan, RunPlan, StepPlan


@dataclass(frozen=True)
class RunKind:
    """What a run of one kind has in the store."""

    name: str
    """As people read it."""
    job: type[PipelineJob] | type[FinetuneJob] | type[ChatJob]
    plan: type[RunPlan]
    mark: str
    """The field of the data in config.json by which the kind is seen."""
    task: str | None = None
    """The `data.task` of its jobs, where those of another kind have the same mark."""


PRETRAINING = RunKind(
    name="pretraining",
    job=PipelineJob,
    plan=StepPlan,
    mark="shards",
)

FINE_TUNING = RunKind(
    name="fine-tuning",
    job=FinetuneJob,
    plan=FinetunePlan,
    mark="key",
)

CHAT = RunKind(
    name="instruction tuning",
    job=ChatJob,
    plan=ChatPlan,
    mark="key",
    task="chat",
)

RUN_KINDS = (PRETRAINING, CHAT, FINE_TUNING)
"""A run is of the first kind whose mark, and whose task if it has one, its config.json has."""


def run_kind(config: Mapping[str, Any]) -> RunKind:
    """The kind of the run whose config.json this is. Raises `ValueError` if its data is that of none."""
    task = task_of(config.get("job"))
    for kind in RUN_KINDS:
        if kind.mark in config.get("data", ()) and kind.task in (None, task):
            return kind
    marks = " nor ".join(f"`{kind.mark}` ({kind.name})" for kind in RUN_KINDS if kind.task is None)
    raise ValueError(f"data names neither {marks}")


def task_of(job: Any) -> Any:
    """The `data.task` of a job's values, if they have one."""
    data = job.get("data") if isinstance(job, Mapping) else None
    return data.get("task") if isinstance(data, Mapping) else None


def plan_type(values: Mapping[str, Any]) -> type[RunPlan]:
    """The plan that a plan.json is, or is meant to be: that which has most of its fields, also where one of them is
    missing, so that this is what is told.
    """
    plans = [kind.plan for kind in RUN_KINDS]
    return max(plans, key=lambda plan: len(plan.model_fields.keys() & values.keys()))
