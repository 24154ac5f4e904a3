"""Pretraining: corpora, mixed, to a causal or masked language model."""

from typing import TYPE_CHECKING

from trainer.common.process import loading
from trainer.common.progress import Progress
from trainer.config.jobs import EvaluateJob, PipelineJob
from trainer.data.tokenization import PreparedData
from trainer.evaluation.measurement import Measurement
from trainer.kinds.kind import Kind, Planned
from trainer.kinds.pretraining.measurement import evaluation_of, identify_own, identify_text
from trainer.kinds.pretraining.prepare import identify, prepare
from trainer.records import run_kinds
from trainer.records.evaluations import Result
from trainer.records.plans import StepPlan
from trainer.records.results import Preflight
from trainer.store.storage import Store

if TYPE_CHECKING:
    from trainer.kinds.pretraining.workload import Pretraining
    from trainer.registry.compared_runs import ComparedKind
    from trainer.registry.content import ReportContent
    from trainer.registry.facts import RunFacts
    from trainer.training.runtime import Runtime


def preflight(job: PipelineJob, progress: Progress) -> Preflight:
    with loading():
        from trainer.kinds.pretraining.preflight import preflight

    return preflight(job, progress)


def open_workload(job: PipelineJob, store: Store, data: PreparedData, ranks: int) -> "Pretraining":
    from trainer.kinds.pretraining.workload import MaskedPretraining, Pretraining

    if job.training.objective == "masked":
        return MaskedPretraining(job, store, data, ranks)
    return Pretraining(job, store, data, ranks)


def plan(job: PipelineJob, data: PreparedData, ranks: int) -> Planned:
    from trainer.data.step_plan import plan_run

    planned = plan_run(Store(job.store), data, job.training, ranks)
    told = f"{planned.windows:,} windows of {job.training.context} tokens"
    return Planned(planned, told, "data-mixture", planned.rows())


def harness(job: PipelineJob, run_key: str) -> EvaluateJob | None:
    return evaluation_of(job, run_key) if job.evaluation.harness else None


def measure(wanted: Measurement, progress: Progress, runtime: "Runtime") -> Result:
    from trainer.kinds.pretraining.evaluate import measure_text

    return measure_text(wanted, progress, runtime)


def report_content(facts: "RunFacts", plan: StepPlan) -> "ReportContent":
    from trainer.kinds.pretraining.page import describe_pretraining

    return describe_pretraining(facts, plan)


def compared() -> "ComparedKind":
    from trainer.kinds.pretraining.page import PRETRAINING

    return PRETRAINING


PRETRAINING = Kind(
    recorded=run_kinds.PRETRAINING,
    data_key="corpora",
    preflight=preflight,
    prepare=lambda job, do: prepare(job.preparation(), do),
    identify=identify,
    open=open_workload,
    plan=plan,
    measurement=identify_own,
    measure=measure,
    checkpoint=identify_text,
    harness=harness,
    report_content=report_content,
    compared=compared,
)
