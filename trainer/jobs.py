"""A whole training job in this process: what `python -m trainer` does, and what a notebook launches.

from accelerate import notebook_launcher
from trainer.jobs import train

notebook_launcher(train, ("configs/finetune.yaml",), num_processes=2)
"""

import logging
import os
from typing import TYPE_CHECKING

from trainer.common.errors import ConfigError
from trainer.common.outages import AT_THE_START
from trainer.common.process import return_freed_memory
from trainer.common.progress import Progress, for_people, silent
from trainer.common.stopping import check_stop
from trainer.config.files import validate_job
from trainer.config.runs import PromotionConfig
from trainer.kinds.table import kind_of, load_training_job
from trainer.pipelines.steps import here
from trainer.records.evaluations import RunEvaluation
from trainer.records.harness import HarnessResult
from trainer.records.results import Remeasured
from trainer.runs.logs import for_terminals, start_logging
from trainer.runs.run import TrainingJob
from trainer.store.storage import Store

if TYPE_CHECKING:  # what follows loads the libraries that train
    from trainer.training.runtime import Runtime


def train(config: str | TrainingJob, *overrides: str) -> str:
    """Prepare, train or continue, evaluate and report; returns the run's key. Called by every rank.

    `config` is a YAML file, to which `key=value` words may be added, or a job. Raises the `PipelineError` of whatever is
    wrong, `Preempted` if training was asked to stop and saved its state.
    """
    from trainer.training.peers import explaining_lost_ranks

    rank = int(os.environ.get("RANK", "0"))
    if not logging.root.handlers:
        start_logging(logging.INFO if rank == 0 else logging.ERROR, for_terminals())
    job = heed_launcher(load_training_job(config, overrides) if isinstance(config, str) else config)
    with explaining_lost_ranks():
        return _train(job)


def _train(job: TrainingJob) -> str:
    from trainer.kinds.training import train as train_run
    from trainer.preflight.disks import require_checkpoint_room
    from trainer.preflight.pretraining import checkpoint_bytes
    from trainer.training.alike import require_alike
    from trainer.training.runtime import leave_group, require_shared, start_runtime

    runtime = start_runtime(job.training.precision, job.training.device, job.training.deterministic)
    require_alike(job, runtime)
    require_shared(Store(job.store), runtime)
    progress = for_people() if runtime.rank == 0 else silent()
    kind = kind_of(job)
    checked = runtime.on_first(lambda: kind.preflight(job, silent()), AT_THE_START)  # however long it takes, the others wait
    runtime.on_each(lambda: require_checkpoint_room(Store(job.store), checkpoint_bytes(checked.trained)))
    data = runtime.on_first(lambda: kind.prepare(job, here(progress)))
    return_freed_memory()
    run = train_run(job, progress, data)
    return_freed_memory()
    runtime.check_stop()
    evaluation = kind.evaluate(job, run.key, data, progress)
    if evaluation is not None and runtime.rank == 0:
        print(evaluation.describe())
    anew = measure_rival(job, run.key, evaluation, progress, runtime)
    leave_group()
    if runtime.rank == 0:
        from trainer.kinds.reporting import make_report

        check_stop()
        store = Store(job.store)
        report = make_report(store, run.key)
        print(f"model: {store.path(run.key)}/final\nreport: {store.path(report.key)}")
        if job.promotion is not None and evaluation is None:
            print("gate not met: nothing is held out, so nothing was measured")
        elif job.promotion is not None and evaluation is not None:
            consider(job.promotion, store, run.key, evaluation, anew)
    return run.key


def heed_launcher(job: TrainingJob) -> TrainingJob:
    """The job with the precision of accelerate's configuration, where the job itself does not choose one.

    Raises `ConfigError` if the ranks are to be another engine's than the launcher's.
    """
    if job.engine.kind != "local":
        raise ConfigError(
            f"engine.kind is {job.engine.kind!r}, but `python -m trainer` trains in this process, and those that torchrun or "
            "accelerate started beside it; use `headrace run`, `headrace finetune`, or engine.kind=local"
        )
    launched = os.environ.get("ACCELERATE_MIXED_PRECISION", "no")
    if launched == "no" or "precision" in job.training.model_fields_set:
        return job
    values = job.model_dump()
    values["training"]["precision"] = launched
    return validate_job(type(job), values, "with the mixed precision of accelerate's configuration")


def measure_rival(
    job: TrainingJob,
    run_key: str,
    evaluation: RunEvaluation | None,
    progress: Progress,
    runtime: "Runtime",
) -> Remeasured | None:
    """Measure the champion on what a run was measured on, if its own scores are of something else. Called by every rank."""
    from trainer.upkeep.gate import remeasure
    from trainer.upkeep.promotion import find_rival

    gate, store = job.promotion, Store(job.store)
    if gate is None or evaluation is None:
        return None
    rival = runtime.on_first(lambda: find_rival(store, gate, run_key, evaluation.measured_on))
    if rival is None:
        return None

    def measure() -> RunEvaluation | HarnessResult:
        return kind_of(job).evaluate_alike(job, run_key, rival.run, evaluation, progress)

    return remeasure(rival, measure)


def consider(
    gate: PromotionConfig,
    store: Store,
    run_key: str,
    evaluation: RunEvaluation,
    anew: Remeasured | None,
) -> None:
    """Hold the run's model against its gate, and make it the champion if it passes. Only Prefect's UI can ask a person."""
    from trainer.upkeep.gate import figures
    from trainer.upkeep.promotion import look, pass_through

    judged = look if gate.approval else pass_through
    verdict = judged(store, gate, run_key, figures(evaluation), evaluation.measured_on, anew)
    print(f"gate {'passed' if verdict.passed else 'not met'}: {verdict.reason}")
    if verdict.passed and gate.approval:
        print("not promoted: promotion.approval asks for a person; `headrace promote` promotes by hand")
