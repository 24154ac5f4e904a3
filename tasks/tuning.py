"""What the tasks of the flow `finetune` do for each kind of job: the stages that they start, and what they look up."""

from collections.abc import Callable
from typing import Any, NamedTuple

from trainer.chat.windows import plan_chat
from trainer.config.chat import ChatJob, TunedJob
from trainer.config.finetuning import FinetuneJob
from trainer.evaluation.answers_measured import find_answers, require_answers
from trainer.evaluation.measured import find_scoring, require_scoring
from trainer.labelled.encoded import encoded_details, split_sizes
from trainer.labelled.encoding import describe_columns
from trainer.order.plan import make_finetune_plan
from trainer.records.evaluations import ChatEvaluation, FinetuneEvaluation
from trainer.records.plans import ChatPlan, FinetunePlan
from trainer.store.manifest import ArtifactRef
from trainer.store.storage import Store

TunedPlan = FinetunePlan | ChatPlan
TunedEvaluation = FinetuneEvaluation | ChatEvaluation


class Tuning(NamedTuple):
    """A kind of job that tunes a model: its stages' names, its plan with what is told of its data, and its evaluation.

    `find` gives an evaluation that was made already, for a run or for that of another one on this one's data.
    """

    preflight: str
    encode: str
    evaluate: str
    plan: Callable[[Any, ArtifactRef, int], tuple[TunedPlan, str]]
    find: Callable[[Store, Any, str, str | None, str], TunedEvaluation | None]
    evaluation: type[TunedEvaluation]


def _plan_labelled(job: FinetuneJob, data: ArtifactRef, ranks: int) -> tuple[FinetunePlan, str]:
    details = encoded_details(Store(job.store), data.key)
    return make_finetune_plan(job.training, split_sizes(details), ranks), describe_columns(details)


def _plan_conversations(job: ChatJob, data: ArtifactRef, ranks: int) -> tuple[ChatPlan, str]:
    plan, found = plan_chat(job, data.key, ranks)
    return plan, f"windows of {found.details['context']} tokens, {plan.fill:.1%} full"


TUNINGS: dict[type[TunedJob], Tuning] = {
    FinetuneJob: Tuning(
        "finetune-preflight", "encode", "evaluate-run", _plan_labelled,
        lambda store, *asked: find_scoring(store, require_scoring(store, *asked)), FinetuneEvaluation,
    ),
    ChatJob: Tuning(
        "chat-preflight", "encode-chat", "evaluate-answers", _plan_conversations,
        lambda store, *asked: find_answers(store, require_answers(store, *asked)), ChatEvaluation,
    ),
}  # fmt: skip


def tuning_of(job: TunedJob) -> Tuning:
    """What is done for a job's kind."""
    return TUNINGS[type(job)]
