"""A whole training job in this process, for `python -m trainer` and for notebooks.

from accelerate import notebook_launcher
from trainer.jobs import train

notebook_launcher(train, ("configs/finetune.yaml",), num_processes=2)
"""

import logging
import os
from typing import TYPE_CHECKING, Any

from trainer.common.display import show
from trainer.common.errors import EXIT_BAD_INPUT, ConfigError, FirstRankFailed
from trainer.common.process import loading, return_freed_memory
from trainer.common.progress import Progress, for_people, silent
from trainer.common.transient import AT_THE_START
from trainer.config.files import validate_job
from trainer.config.jobs import EvaluateJob
from trainer.config.runs import PromotionConfig, RunJob
from trainer.kinds.kind import kind_of, load_training_job
from trainer.pipelines.pipeline import run_pipeline
from trainer.records.evaluations import Result
from trainer.records.plans import RunPlan
from trainer.records.results import AnyPreflight, Remeasured, Verdict
from trainer.records.steps import in_ranks
from trainer.store.manifest import ArtifactRef
from trainer.store.storage import Store
from trainer.training.identity import TrainingData, data_keys
from trainer.training.logs import for_terminals, start_logging

if TYPE_CHECKING:  # what follows loads the libraries that train
    from trainer.registry.report import Report
    from trainer.training.runtime import Runtime


def train(config: str | RunJob, *overrides: str) -> str:
    """Prepare, train or continue, evaluate and report; returns the run's key. Called by every rank.

    `config` is a YAML file, with optional `key=value` overrides, or a job. Raises the `PipelineError` of the first
    problem, or `Preempted` if training was asked to stop and saved its state.
    """
    with loading():
        from trainer.training.rank_watchdog import explaining_lost_ranks

    rank = int(os.environ.get("RANK", "0"))
    if not logging.root.handlers:
        start_logging(logging.INFO if rank == 0 else logging.ERROR, for_terminals())
    job = use_launcher_precision(load_training_job(config, overrides) if isinstance(config, str) else config)
    with explaining_lost_ranks():
        return _train(job)


def _train(job: RunJob) -> str:
    with loading():
        from trainer.training.rank_agreement import require_consistent
        from trainer.training.runtime import leave_group, require_shared, start_runtime

    runtime = start_runtime(job.training.precision, job.training.device, job.training.deterministic)
    require_consistent(job, runtime)
    require_shared(Store(job.store), runtime)
    run = run_pipeline(job, InRanks(runtime)).run
    leave_group()
    return run


class InRanks:
    """The `Stages` of ranks that a launcher started, or of this process alone. Every rank calls every method.

    The first rank does the work of single-process steps, however long it takes, and the others wait.
    """

    def __init__(self, runtime: "Runtime") -> None:
        self._runtime = runtime
        self._progress = for_people() if runtime.rank == 0 else silent()

    def make(self, name: str, job: Any, **made: Any) -> ArtifactRef:
        return in_ranks(self._runtime, self._progress)(name, job, **made)

    def preflight(self, job: Any) -> AnyPreflight:
        from trainer.pipelines.any_kind import preflight
        from trainer.preflight.resources import require_checkpoint_room

        checked = self._runtime.on_first(lambda: preflight(job, silent()), AT_THE_START)
        self._runtime.on_each(lambda: require_checkpoint_room(Store(job.store), checked.checkpoint_bytes))
        return checked

    def plan(self, job: Any, data: TrainingData, checked: Any) -> RunPlan:
        planned = self._runtime.on_first(lambda: kind_of(job).plan(job, data, self._runtime.ranks).plan)
        return_freed_memory()
        return planned

    def train(self, job: Any, data: TrainingData, plan: RunPlan) -> ArtifactRef:
        from trainer.pipelines.any_kind import train

        run = train(job, self._progress, data, plan)
        return_freed_memory()
        self._runtime.check_stop()
        return run

    def evaluate(self, job: Any, data: TrainingData, plan: RunPlan, run: str) -> Result:
        from trainer.pipelines.any_kind import evaluate_run

        return self._print_result(evaluate_run(job, run, self._progress, data_keys(data)))

    def harness(self, evaluation_job: EvaluateJob, evaluation: Any) -> Any:
        from trainer.pipelines.any_kind import evaluate_harness

        return evaluation.beside(self._print_result(evaluate_harness(evaluation_job, True, self._progress)))

    def report(self, job: Any, run: str) -> "Report":
        from trainer.registry.report import make_report

        store = Store(job.store)
        made = self._runtime.on_first(lambda: make_report(store, run))
        if self._runtime.rank == 0:
            show(f"model: {store.path(run)}/final\nreport: {store.path(made.key)}\n")
        return made

    def consider(
        self, job: Any, data: TrainingData, plan: RunPlan, run: str, evaluation: Result | None
    ) -> Verdict | None:
        remeasured = measure_champion(job, run, evaluation, self._progress, self._runtime)
        gate = job.promotion
        if gate is None or evaluation is None:
            return None
        return self._runtime.on_first(lambda: consider(gate, Store(job.store), run, evaluation, remeasured))

    def _print_result(self, found: Result) -> Result:
        if self._runtime.rank == 0:
            show(f"{found.describe()}\n")
        return found


def use_launcher_precision(job: RunJob) -> RunJob:
    """The job, with the precision of accelerate's configuration unless the job sets its own.

    Raises `ConfigError` if the job's engine would start its own ranks.
    """
    if job.engine.kind != "local":
        raise ConfigError(
            f"engine.kind is {job.engine.kind!r}, but `python -m trainer` trains in this process and in the ranks that "
            "torchrun or accelerate started; use `headrace run`, `headrace finetune`, or engine.kind=local"
        )
    launched = os.environ.get("ACCELERATE_MIXED_PRECISION", "no")
    if launched == "no" or "precision" in job.training.model_fields_set:
        return job
    values = job.model_dump()
    values["training"]["precision"] = launched
    return validate_job(type(job), values, "with the mixed precision of accelerate's configuration")


def measure_champion(
    job: RunJob,
    run_key: str,
    evaluation: Result | None,
    progress: Progress,
    runtime: "Runtime",
) -> Remeasured | None:
    """Measure the champion on the data of a run's evaluation, if its own scores are on other data. Called by every
    rank.
    """
    from trainer.registry.gate import champion_job
    from trainer.registry.promotion import champion_to_measure, remeasure

    gate, store = job.promotion, Store(job.store)
    if gate is None or evaluation is None:
        return None
    champion = runtime.on_first(lambda: champion_to_measure(store, gate, run_key, evaluation.measured_on))
    if champion is None:
        return None

    def measure() -> Result:
        from trainer.pipelines.any_kind import evaluate_harness, evaluate_run

        if (evaluation_job := champion_job(job, champion.run)) is not None:
            return evaluate_harness(evaluation_job, False, progress)
        return evaluate_run(job, run_key, progress, evaluation.data, champion.run)

    try:
        return remeasure(champion, measure)
    except FirstRankFailed as error:
        if error.status != EXIT_BAD_INPUT:  # the first rank ends, too
            raise
        return None  # this rank does not judge, and the first one knows the problem


def consider(
    gate: PromotionConfig,
    store: Store,
    run_key: str,
    evaluation: Result,
    remeasured: Remeasured | None,
) -> Verdict:
    """Compare the run's model with its gate, and make it the champion if it passes. A gate with `approval` is not met,
    because a person approves in Prefect's UI.
    """
    from trainer.registry.gate import unapproved
    from trainer.registry.promotion import look, pass_through

    judged = look if gate.approval else pass_through
    verdict = judged(store, gate, run_key, evaluation.figures(), evaluation.measured_on, remeasured)
    verdict = unapproved(verdict) if gate.approval else verdict
    show(f"gate {'passed' if verdict.passed else 'not met'}: {verdict.reason}\n")
    return verdict
