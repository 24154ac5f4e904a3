"""Instruction tuning: conversations and a pretrained causal model to one that answers."""

from typing import TYPE_CHECKING

from trainer.common.process import loading
from trainer.common.progress import Progress
from trainer.config.chat import ChatJob
from trainer.evaluation.measurement import Measurement
from trainer.kinds.chat.identity import identify
from trainer.kinds.chat.measurement import ask_harness, identify_own
from trainer.kinds.kind import Kind, Planned
from trainer.kinds.tuning import SPLITS, split_rows
from trainer.records import run_kinds
from trainer.records.evaluations import Result
from trainer.records.plans import ChatPlan
from trainer.records.results import FinetunePreflight
from trainer.store.manifest import ArtifactRef
from trainer.store.storage import Store

if TYPE_CHECKING:
    from trainer.kinds.chat.workload import Chat
    from trainer.registry.compared_runs import ComparedKind
    from trainer.registry.content import ReportContent
    from trainer.registry.facts import RunFacts
    from trainer.training.runtime import Runtime


def preflight(job: ChatJob, progress: Progress) -> FinetunePreflight:
    with loading():
        from trainer.kinds.chat.preflight import chat_preflight

    return chat_preflight(job, progress)


def open_workload(job: ChatJob, store: Store, data: ArtifactRef, ranks: int) -> "Chat":
    from trainer.kinds.chat.workload import Chat

    return Chat(job, store, data.key, ranks)


def plan(job: ChatJob, data: ArtifactRef, ranks: int) -> Planned:
    from trainer.data.chat.encoded import plan_chat

    planned, found = plan_chat(job, data.key, ranks)
    told = f"windows of {found.details['context']} tokens, {planned.fill:.1%} full"
    return Planned(planned, told, SPLITS, split_rows(found.details))


def measure(wanted: Measurement, progress: Progress, runtime: "Runtime") -> Result:
    from trainer.kinds.chat.evaluate import measure_answers

    return measure_answers(wanted, progress, runtime)


def report_content(facts: "RunFacts", plan: ChatPlan) -> "ReportContent":
    from trainer.kinds.chat.page import describe_chat

    return describe_chat(facts, plan)


def compared() -> "ComparedKind":
    from trainer.kinds.chat.page import CHAT

    return CHAT


CHAT = Kind(
    recorded=run_kinds.CHAT,
    data_key="task",
    preflight=preflight,
    prepare=lambda job, do: do("encode-chat", job),
    identify=identify,
    open=open_workload,
    plan=plan,
    measurement=identify_own,
    measure=measure,
    harness=ask_harness,
    report_content=report_content,
    compared=compared,
)
