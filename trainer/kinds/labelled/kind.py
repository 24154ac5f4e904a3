"""Fine-tuning: labelled data and a pretrained model to one that classifies, or predicts a number."""

from typing import TYPE_CHECKING

from trainer.common.process import loading
from trainer.common.progress import Progress
from trainer.config.labelled import FinetuneJob
from trainer.evaluation.measurement import Measurement
from trainer.kinds.kind import Kind, Planned
from trainer.kinds.labelled.identity import identify
from trainer.kinds.labelled.measurement import identify_checkpoint, identify_own
from trainer.kinds.tuning import SPLITS, split_rows
from trainer.records import run_kinds
from trainer.records.evaluations import Result
from trainer.records.plans import FinetunePlan
from trainer.records.results import FinetunePreflight
from trainer.store.manifest import ArtifactRef
from trainer.store.storage import Store

if TYPE_CHECKING:
    from trainer.kinds.labelled.workload import Finetuning
    from trainer.registry.compared_runs import ComparedKind
    from trainer.registry.content import ReportContent
    from trainer.registry.facts import RunFacts
    from trainer.training.runtime import Runtime


def preflight(job: FinetuneJob, progress: Progress) -> FinetunePreflight:
    with loading():
        from trainer.kinds.labelled.preflight import finetune_preflight

    return finetune_preflight(job, progress)


def open_workload(job: FinetuneJob, store: Store, data: ArtifactRef, ranks: int) -> "Finetuning":
    from trainer.kinds.labelled.workload import Finetuning

    return Finetuning(job, store, data.key, ranks)


def plan(job: FinetuneJob, data: ArtifactRef, ranks: int) -> Planned:
    from trainer.data.encoded import encoded_details, split_sizes
    from trainer.data.labelled.encoding import describe_columns
    from trainer.data.step_plan import make_finetune_plan

    details = encoded_details(Store(job.store), data.key)
    planned = make_finetune_plan(job.training, split_sizes(details), ranks)
    return Planned(planned, describe_columns(details), SPLITS, split_rows(details))


def measure(wanted: Measurement, progress: Progress, runtime: "Runtime") -> Result:
    from trainer.kinds.labelled.evaluate import measure_labelled

    return measure_labelled(wanted, progress, runtime)


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
    measurement=identify_own,
    measure=measure,
    checkpoint=identify_checkpoint,
    report_content=report_content,
    compared=compared,
)
