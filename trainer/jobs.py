"""A whole training job in this process: what `python -m trainer` does, and what a notebook launches.

from accelerate import notebook_launcher
from trainer.jobs import train

notebook_launcher(train, ("configs/finetune.yaml",), num_processes=2)
"""

import logging
import os
from typing import TYPE_CHECKING

from trainer.common.outages import AT_THE_START
from trainer.common.process import return_freed_memory
from trainer.common.progress import Progress, for_people, silent
from trainer.common.stopping import check_stop
from trainer.config.files import read_values, validate_job
from trainer.config.finetuning import FinetuneJob
from trainer.config.jobs import PipelineJob, PromotionConfig
from trainer.evaluation.requests import measurement, measurement_alike
from trainer.records.results import Evaluation, FinetuneEvaluation, Remeasured
from trainer.records.seals import require_sealed
from trainer.runs.logs import for_terminals, start_logging
from trainer.store.manifest import ArtifactRef
from trainer.store.storage import Store

if TYPE_CHECKING:  # what follows loads the libraries that train
    from trainer.training.runtime import Runtime


def train(config: str | PipelineJob | FinetuneJob, *overrides: str) -> str:
    """Prepare, train or continue, evaluate and report; returns the run's key. Called by every rank.

    `config` is a YAML file, to which `key=value` words may be added, or a job. Raises the `PipelineError` of whatever is
    wrong, `Preempted` if training was asked to stop and saved its state.
    """
    from trainer.training.run import prepare_data
    from trainer.training.run import train as train_run
    from trainer.training.runtime import leave_group, require_shared, start_runtime

    rank = int(os.environ.get("RANK", "0"))
    if not logging.root.handlers:
        start_logging(logging.INFO if rank == 0 else logging.ERROR, for_terminals())
    job = heed_launcher(load_training_job(config, overrides) if isinstance(config, str) else config)
    runtime = start_runtime(job.training.precision, job.training.device, job.training.deterministic)
    require_shared(Store(job.store), runtime)
    progress = for_people() if runtime.rank == 0 else silent()
    runtime.on_first(lambda: check(job), AT_THE_START)  # however long it takes, the others wait
    data = runtime.on_first(lambda: prepare_data(job, progress))
    return_freed_memory()
    encoded = data.key if isinstance(data, ArtifactRef) else None
    run = train_run(job, progress, data)
    return_freed_memory()
    runtime.check_stop()
    evaluation = evaluate(job, run, encoded, progress, runtime.rank)
    anew = measure_rival(job, run.key, evaluation, progress, runtime)
    leave_group()
    if runtime.rank == 0:
        from trainer.report.making import make_report

        check_stop()
        store = Store(job.store)
        report = make_report(store, run.key)
        print(f"model: {store.path(run.key)}/final\nreport: {store.path(report.key)}")
        if job.promotion is not None and evaluation is None:
            print("gate not met: nothing is held out, so nothing was measured")
        elif job.promotion is not None and evaluation is not None:
            consider(job.promotion, store, run.key, evaluation, anew)
    return run.key


def load_training_job(path: str, overrides: tuple[str, ...] | list[str] = ()) -> PipelineJob | FinetuneJob:
    """The job of a YAML file: of labelled data if `data` names a `source`, else of corpora. Raises `ConfigError`."""
    values = read_values(path, overrides)
    data = values.get("data")
    if isinstance(data, dict) and "source" in data:
        return validate_job(FinetuneJob, values, path)
    return validate_job(PipelineJob, values, path)


def heed_launcher(job: PipelineJob | FinetuneJob) -> PipelineJob | FinetuneJob:
    """The job with the precision of accelerate's configuration, where the job itself does not choose one."""
    launched = os.environ.get("ACCELERATE_MIXED_PRECISION", "no")
    if launched == "no" or "precision" in job.training.model_fields_set:
        return job
    values = job.model_dump()
    values["training"]["precision"] = launched
    return validate_job(type(job), values, "with the mixed precision of accelerate's configuration")


def check(job: PipelineJob | FinetuneJob) -> None:
    """Look at everything before long work starts."""
    from trainer.preflight.finetuning import finetune_preflight
    from trainer.preflight.pretraining import preflight

    if isinstance(job, FinetuneJob):
        finetune_preflight(job, silent())
    else:
        preflight(job, silent())


def evaluate(
    job: PipelineJob | FinetuneJob, run: ArtifactRef, encoded: str | None, progress: Progress, rank: int
) -> Evaluation | FinetuneEvaluation | None:
    """Measure the final model, if anything is held out, and say the result. `encoded` is the key of a labelled set."""
    from trainer.evaluation.classifying import evaluate_run
    from trainer.evaluation.measuring import evaluate_checkpoint
    from trainer.records.plans import StepPlan
    from trainer.store.places import PLAN

    if isinstance(job, FinetuneJob):
        result = evaluate_run(job, run.key, progress, encoded=encoded)
        if rank == 0:
            print(", ".join(f"{result.label(name)} {value:.4f}" for name, value in result.scores["validation"].items()))
        return result
    if not StepPlan(**require_sealed(Store(job.store), f"{run.key}/{PLAN}")).holds_out:
        return None
    measured = evaluate_checkpoint(measurement(job, run.key), progress)
    if rank == 0:
        print(f"held-out {measured.scores.total.describe()}")
    return measured


def measure_rival(
    job: PipelineJob | FinetuneJob,
    run_key: str,
    evaluation: Evaluation | FinetuneEvaluation | None,
    progress: Progress,
    runtime: "Runtime",
) -> Remeasured | None:
    """Measure the champion on what a run was measured on, if its own scores are of something else. Called by every rank."""
    from trainer.evaluation.classifying import evaluate_run
    from trainer.evaluation.measuring import evaluate_checkpoint
    from trainer.upkeep.gate import remeasure
    from trainer.upkeep.promotion import find_rival

    gate, store = job.promotion, Store(job.store)
    if gate is None or evaluation is None:
        return None
    rival = runtime.on_first(lambda: find_rival(store, gate, run_key, evaluation.measured_on))
    if rival is None:
        return None

    def measure() -> Evaluation | FinetuneEvaluation:
        if isinstance(job, FinetuneJob):
            assert isinstance(evaluation, FinetuneEvaluation)
            return evaluate_run(job, run_key, progress, rival.run, evaluation.encoded)
        assert isinstance(evaluation, Evaluation)
        return evaluate_checkpoint(measurement_alike(measurement(job, run_key), rival.run, evaluation), progress)

    return remeasure(rival, measure)


def consider(
    gate: PromotionConfig,
    store: Store,
    run_key: str,
    evaluation: Evaluation | FinetuneEvaluation,
    anew: Remeasured | None,
) -> None:
    """Hold the run's model against its gate, and make it the champion if it passes. Only Prefect's UI can ask a person."""
    from trainer.upkeep.gate import figures
    from trainer.upkeep.promotion import look, pass_through

    judged = look if gate.approval else pass_through
    verdict = judged(store, gate, run_key, figures(evaluation), evaluation.measured_on, anew)
    print(f"gate {'passed' if verdict.passed else 'not met'}: {verdict.reason}")
    if verdict.passed and gate.approval:
        print("not promoted: promotion.approval asks for a person; `python -m flows.promote` promotes by hand")
