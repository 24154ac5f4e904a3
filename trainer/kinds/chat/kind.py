"""Instruction tuning: conversations and a pretrained causal model to one that answers."""

from typing import TYPE_CHECKING

from trainer.common.process import loading
from trainer.common.progress import Progress
from trainer.config.chat import ChatJob
from trainer.config.jobs import EvaluateJob
from trainer.evaluation.cache import harness_measurement
from trainer.evaluation.of_runs import check_asked
from trainer.kinds.chat.identity import identify
from trainer.kinds.kind import Kind
from trainer.kinds.tuning import Tuning
from trainer.records import run_kinds
from trainer.records.evaluations import ChatEvaluation
from trainer.records.plans import ChatPlan
from trainer.records.results import FinetunePreflight
from trainer.store.manifest import ArtifactRef
from trainer.store.storage import Store

if TYPE_CHECKING:
    from trainer.kinds.chat.workload import Chat
    from trainer.preflight.step_status import StepStatus
    from trainer.registry.compared_runs import ComparedKind
    from trainer.registry.content import ReportContent
    from trainer.registry.facts import RunFacts


def preflight(job: ChatJob, progress: Progress) -> FinetunePreflight:
    with loading():
        from trainer.kinds.chat.preflight import chat_preflight

    return chat_preflight(job, progress)


def open_workload(job: ChatJob, store: Store, data: ArtifactRef, ranks: int) -> "Chat":
    from trainer.kinds.chat.workload import Chat

    return Chat(job, store, data.key, ranks)


def evaluate(job: ChatJob, run_key: str, data: ArtifactRef, progress: Progress) -> ChatEvaluation:
    from trainer.kinds.chat.evaluate import evaluate_answers

    return evaluate_answers(job, run_key, progress, encoded=data.key)


def evaluate_alike(
    job: ChatJob, run_key: str, other: str, evaluation: ChatEvaluation, progress: Progress
) -> ChatEvaluation:
    from trainer.kinds.chat.evaluate import evaluate_answers

    return evaluate_answers(job, run_key, progress, other, evaluation.encoded)


def explain_evaluation(store: Store, job: ChatJob, data: ArtifactRef, run_key: str) -> "StepStatus":
    from trainer.preflight.run_status import explain_answers

    return explain_answers(store, job, data, run_key)


def harness(job: ChatJob, run_key: str) -> EvaluateJob | None:
    return harness_measurement(job, run_key) if job.evaluation.harness else None


def plan(job: ChatJob, data: ArtifactRef, ranks: int) -> tuple[ChatPlan, str]:
    from trainer.data.chat.encoded import plan_chat

    planned, found = plan_chat(job, data.key, ranks)
    return planned, f"windows of {found.details['context']} tokens, {planned.fill:.1%} full"


def find(store: Store, job: ChatJob, run: str, other: str | None, encoded: str) -> ChatEvaluation | None:
    from trainer.evaluation.cache import find_answers, identify_answers

    check_asked(store, run, encoded)
    return find_answers(store, identify_answers(store, job, run, other, encoded))


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
    evaluate=evaluate,
    harness=harness,
    evaluate_alike=evaluate_alike,
    explain_evaluation=explain_evaluation,
    report_content=report_content,
    compared=compared,
    tuning=Tuning("chat-preflight", "evaluate-answers", find),
)
