"""Tasks that look before the work starts: the preflight, and the step plan."""

from typing import Any

from prefect.artifacts import create_table_artifact

from tasks.patience import patient_task
from tasks.showing import TaskLogger, showing
from tasks.stage import run_stage
from trainer.common.formats import plural
from trainer.common.transient import AT_THE_START
from trainer.config.chat import TunedJob
from trainer.config.jobs import PipelineJob
from trainer.data.encoded import encoded_details
from trainer.data.tokenization import PreparedData
from trainer.kinds.table import kind_of
from trainer.records.plans import Plan, RunPlan, StepPlan
from trainer.records.results import FinetunePreflight, Preflight
from trainer.store.manifest import ArtifactRef
from trainer.store.storage import Store


@patient_task("preflight", retries=0, most=AT_THE_START)
def preflight(job: PipelineJob) -> Preflight:
    """Check inputs, store, devices and model before any long work."""
    with showing() as show:
        found = Preflight(**run_stage("preflight", {"job": job.model_dump(mode="json")}, show, TaskLogger()))
    TaskLogger().info(
        "preflight: %s, %.1f MB raw, a model of %.1fM parameters, %s",
        plural(len(found.corpora), "corpus", "corpora"), sum(corpus.raw_bytes for corpus in found.corpora) / 1e6,
        found.parameters / 1e6, plural(found.ranks, "rank"),
    )  # fmt: skip
    return found


@patient_task("preflight", retries=0, most=AT_THE_START)
def finetune_preflight(job: TunedJob) -> FinetunePreflight:
    """Check store, devices, model, tokenizer and metrics before any long work."""
    arguments = {"job": job.model_dump(mode="json")}
    with showing() as show:
        found = FinetunePreflight(**run_stage("preflight", arguments, show, TaskLogger()))
    TaskLogger().info(
        "preflight: %s, %.1fM parameters, measured by %s, %s",
        found.model, found.parameters / 1e6, ", ".join(found.metrics), plural(found.ranks, "rank"),
    )  # fmt: skip
    for name, told in found.data_rows():
        TaskLogger().info("%s: %s", name, told)
    return found


@patient_task("plan-steps", retries=0)
def plan_finetuning(job: TunedJob, data: ArtifactRef, ranks: int) -> RunPlan:
    """Compute the steps from what was encoded, and show them."""
    plan, told = kind_of(job).plan(job, data, ranks)
    details = encoded_details(Store(job.store), data.key)
    create_table_artifact(split_table(details), key="labelled-data", description=told)
    create_table_artifact(step_table(plan), key="step-plan", description=f"{plan.total_steps:,} optimizer steps")
    assert not isinstance(plan, StepPlan)  # of splits
    TaskLogger().info("plan: %s", plan.describe_steps())
    return plan


def split_table(details: dict[str, Any]) -> list[dict[str, object]]:
    """A row for each split of an encoded set."""
    figures = ("examples", "tokens", "answer_tokens", "longest", "truncated", "unanswered", "bad_records")
    return [
        {"split": name, **{figure.replace("_", " "): split[figure] for figure in figures if figure in split}}
        for name, split in details["splits"].items()
    ]


@patient_task("plan-steps", retries=0)
def plan_steps(job: PipelineJob, data: PreparedData, ranks: int) -> StepPlan:
    """Compute windows and steps from the shards' sizes, and show them."""
    plan, told = kind_of(job).plan(job, data, ranks)
    assert isinstance(plan, StepPlan)  # of corpora
    create_table_artifact(corpus_table(plan), key="data-mixture", description=told)
    create_table_artifact(step_table(plan), key="step-plan", description=f"{plan.total_steps:,} optimizer steps")
    TaskLogger().info("plan: %s", describe_plan(plan))
    return plan


def describe_plan(plan: StepPlan) -> str:
    """The plan in one line."""
    windows = f"{plan.windows:,} windows" + ("" if plan.fill is None else f", {plan.fill:.1%} full")
    return (
        f"{windows}, {plan.steps_per_epoch:,} steps an epoch; {plan.total_steps:,} steps of {plan.global_batch} "
        f"windows ({plural(plan.ranks, 'rank')} x {plan.accumulation} x {plan.micro_batch}), {plan.total_tokens:,} "
        "tokens"
    )


def corpus_table(plan: StepPlan) -> list[dict[str, object]]:
    """A row for each corpus."""
    return [
        {
            "corpus": corpus.name,
            "documents": corpus.documents,
            "tokens": corpus.tokens,
            "held-out tokens": corpus.validation_tokens,
            "windows": corpus.windows,
            "share of samples": f"{corpus.probability:.1%}",
            "passes": f"{corpus.passes:.2f}",
        }
        for corpus in plan.corpora
    ]


def step_table(plan: Plan) -> list[dict[str, object]]:
    """A row for each figure of the plan."""
    return [{"figure": name, "value": value} for name, value in plan.figures().items()]
