"""Fine-tuning: labelled data and a pretrained model to one that classifies, or predicts a number."""

from typing import TYPE_CHECKING

from trainer.common.process import loading
from trainer.common.progress import Progress
from trainer.config.labelled import FinetuneJob
from trainer.evaluation.of_runs import check_asked
from trainer.kinds.kind import Kind
from trainer.kinds.labelled.identity import identify
from trainer.kinds.tuning import Tuning
from trainer.records import run_kinds
from trainer.records.evaluations import FinetuneEvaluation
from trainer.records.plans import FinetunePlan
from trainer.records.results import FinetunePreflight
from trainer.store.manifest import ArtifactRef
from trainer.store.storage import Store

if TYPE_CHECKING:
    from trainer.kinds.labelled.workload import Finetuning
    from trainer.preflight.step_status import StepStatus
    from trainer.registry.compared_runs import ComparedKind
    from trainer.registry.content import ReportContent
    from trainer.registry.facts import RunFacts


def preflight(job: FinetuneJob, progress: Progress) -> FinetunePreflight:
    with loading():
        from trainer.kinds.labelled.preflight import finetune_preflight

    return finetune_preflight(job, progress)


def open_workload(job: FinetuneJob, store: Store, data: ArtifactRef, ranks: int) -> "Finetuning":
    from trainer.kinds.labelled.workload import Finetuning

    return Finetuning(job, store, data.key, ranks)


def evaluate(job: FinetuneJob, run_key: str, data: ArtifactRef, progress: Progress) -> FinetuneEvaluation:
    from trainer.kinds.labelled.evaluate import evaluate_run

    return evaluate_run(job, run_key, progress, encoded=data.key)


def evaluate_alike(
    job: FinetuneJob, run_key: str, other: str, evaluation: FinetuneEvaluation, progress: Progress
) -> FinetuneEvaluation:
    from trainer.kinds.labelled.evaluate import evaluate_run

    return evaluate_run(job, run_key, progress, other, evaluation.encoded)


def explain_evaluation(store: Store, job: FinetuneJob, data: ArtifactRef, run_key: str) -> "StepStatus":
    from trainer.preflight.run_status import explain_scoring

    return explain_scoring(store, job, data, run_key)


def plan(job: FinetuneJob, data: ArtifactRef, ranks: int) -> tuple[FinetunePlan, str]:
    from trainer.data.encoded import encoded_details, split_sizes
    from trainer.data.labelled.encoding import describe_columns
    from trainer.data.step_plan import make_finetune_plan

    details = encoded_details(Store(job.store), data.key)
    return make_finetune_plan(job.training, split_sizes(details), ranks), describe_columns(details)


def find(store: Store, job: FinetuneJob, run: str, other: str | None, encoded: str) -> FinetuneEvaluation | None:
    from trainer.evaluation.cache import find_scoring, identify_scoring

    check_asked(store, run, encoded)
    return find_scoring(store, identify_scoring(store, job, run, other, encoded))


def report_content(facts: "RunFacts", plan: FinetunePlan) -> "ReportContent":
    from trainer.kinds.labelled.page import describe_finetuning

    return describe_finetuning(facts, plan)


def compared() -> "ComparedKind":
    from trainer.kinds.labelled.page import FINE_TUNING

    return FINE_TUNING


FINETUNING = Kind(
    recorded=run_kinds.FINE_TUNING,
    data_key="source",
    preflight=preflight,
    prepare=lambda job, do: do("encode", job),
    identify=identify,
    open=open_workload,
    plan=plan,
    evaluate=evaluate,
    evaluate_alike=evaluate_alike,
    explain_evaluation=explain_evaluation,
    report_content=report_content,
    compared=compared,
    tuning=Tuning("finetune-preflight", "evaluate-run", find),
)
