"""Training a run from its data or its newest checkpoint to its published final model; rollbacks."""

import logging
from collections.abc import Callable
from contextlib import ExitStack, closing, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

from transformers import PreTrainedModel

from trainer.common.errors import ArtifactError, RunError
from trainer.common.progress import Progress
from trainer.common.stopping import signal_handlers
from trainer.common.transient import retry_transient
from trainer.config.runs import RunJob
from trainer.data.dataset import batches_from
from trainer.models.adapters import count_trained, is_adapted, load_adapter, merge, save_model
from trainer.models.pretrained import find_model
from trainer.models.weights import Base, is_adapter, require_base
from trainer.records.evaluations import Criterion
from trainer.records.fields import list_changes
from trainer.records.lease import Lease, clear_dead_lease, is_held
from trainer.records.plans import Plan, RunPlan
from trainer.records.shapes import folder_name
from trainer.records.steps import in_ranks
from trainer.store.artifact_files import fetch_artifact
from trainer.store.manifest import ArtifactRef, publish_folder
from trainer.store.names import CHECKPOINT_KIND, FINAL, FINAL_KIND
from trainer.store.storage import Store
from trainer.training.checkpoint import TrainState, ended_epoch, find_checkpoint, read_computed
from trainer.training.compiling import compile_objective
from trainer.training.forks import find_fork, fork_weights
from trainer.training.identity import (
    Run,
    TrainingData,
    check_begun,
    claim_run,
    final_form,
    final_manifest,
    finished_run,
    note_untrained,
    starting_with,
)
from trainer.training.logs import kept_log
from trainer.training.loop import Session, finish_saving, run_loop
from trainer.training.metrics_reader import ROLLBACK
from trainer.training.metrics_writer import RunLog
from trainer.training.parallelize import place_model, reload_rows
from trainer.training.part_saver import PartSaver, publish_parts
from trainer.training.rank_agreement import name_together, require_same_model
from trainer.training.rank_watchdog import explaining_lost_ranks
from trainer.training.restoring import restore
from trainer.training.run_repair import (
    find_best,
    note_environment,
    repair_config,
    repair_finished,
    repair_plan,
    warn_of_damaged_best,
)
from trainer.training.runtime import (
    Runtime,
    describe_environment,
    explained_algorithms,
    keep_threads,
    prefer_cudnn_attention,
    require_shared,
    start_runtime,
)
from trainer.training.saver import Saver, SaverOptions
from trainer.training.schedules import make_schedule, planned_rates
from trainer.training.sharding import is_sharded, reshard, sharding_group
from trainer.training.step import make_optimizer
from trainer.training.throughput import Meter, peak_flops
from trainer.training.tracking import Trackers
from trainer.training.workload import TrainingKind, Workload

log = logging.getLogger(__name__)


T = TypeVar("T")


def roll_back(session: Session, store: Store, run: str, workload: Workload) -> None:
    """Restore weights, optimizer and step from the last checkpoint. The data is not rewound: training continues with
    the next batch.

    Raises `RunError` if there is no commit yet.
    """
    state, runtime = session.state, session.runtime
    finish_saving(session)
    checkpoint = runtime.on_first(lambda: find_checkpoint(store, run, total_steps=session.plan.total_steps))
    if checkpoint is None:
        raise RunError(
            f"training has diverged before its first checkpoint: the gradients of {state.attempts - state.step} "
            "batches were not finite; lower training.learning_rate"
        )
    folder = fetch_artifact(store, f"{run}/{checkpoint}", CHECKPOINT_KIND)
    if is_sharded(session.model):
        reload_rows(session.model, workload, runtime, folder)
    elif is_adapted(session.model):
        load_adapter(session.model, folder)
    else:
        session.model.load_state_dict(workload.load_model(folder).state_dict())
    saved = restore(folder, session.objective, session.bare_optimizer, session.schedule, runtime.accelerator.scaler)
    store.release(f"{run}/{checkpoint}")
    for name in TrainState.model_fields.keys() - {"attempts"}:
        setattr(state, name, getattr(saved, name))
    if session.log is not None:
        session.log.rewind(state.step)
        session.log.write(ROLLBACK, state.step, attempts=state.attempts)


@explaining_lost_ranks()
def train(
    job: RunJob,
    kind: TrainingKind,
    progress: Progress,
    data: TrainingData | None = None,
    expected: RunPlan | None = None,
) -> ArtifactRef:
    """Train to the end and publish the final model; continues from the newest checkpoint, and reuses a finished run.

    Called by every rank. `data` defaults to preparing it here; the plan must equal `expected` if that is given. Raises
    `RunError` if the run's folder or the plan do not match the job.
    """
    runtime = start_runtime(job.training.precision, job.training.device, job.training.deterministic)
    store = Store(job.store)
    require_shared(store, runtime)
    prepared = data or kind.prepare(job, in_ranks(runtime, progress))
    run = name_together(lambda: kind.identify(job, prepared), runtime)
    finished = runtime.on_first(lambda: finished_run(store, run))
    if finished is not None:
        runtime.on_first(lambda: _tidy(job, kind, store, run, prepared, runtime.ranks))
        runtime.on_first(lambda: note_untrained(store, run, job, prepared))
        return finished
    workload = retry_transient(lambda: kind.open(starting_with(job, run.start), store, prepared, runtime.ranks))
    if expected is not None and (differences := list_changes(expected.fixed(), workload.plan.fixed())):
        raise RunError(f"the trainer's step plan differs from the one that it was given: {'; '.join(differences)}")
    with ExitStack() as stack:
        stack.callback(workload.close)
        lease = Lease(store, run.key)
        runtime.on_first(lambda: _hold(lease, stack))
        stack.enter_context(store.explained_when_full(run.key))
        runtime.on_first(lambda: _claim(store, run, job, prepared, workload))
        stack.enter_context(kept_log(store, run.key, runtime.rank))
        stack.enter_context(explained_algorithms(job.training.deterministic))
        stack.enter_context(sharding_group(job.training, runtime))
        model, state = _train(job, store, run, workload, runtime, progress, lease)
        # Before a publication that may be retried: it merges an adapter in place.
        counts = {"trained": count_trained(model)._asdict()} if is_adapted(model) else {}
        return runtime.on_first(lambda: _publish(job, store, run, workload, model, state, lease, counts))


def _tidy(job: RunJob, kind: TrainingKind, store: Store, run: Run, data: TrainingData, ranks: int) -> None:
    """Clean up after a finished run's last process, and repair what has been lost or damaged since."""

    def make_plan() -> Plan:
        with closing(kind.open(job, store, data, ranks)) as workload:
            return workload.plan

    clear_dead_lease(store, run.key)
    if not is_held(store, run.key):
        repair_config(store, run, job, data)
        repair_finished(store, run.key, make_plan, job.best_by, job.training.keep_epochs)


def _hold(lease: Lease, stack: ExitStack) -> None:
    stack.enter_context(lease)


def _claim(store: Store, run: Run, job: RunJob, data: TrainingData, workload: Workload) -> None:
    store.sweep()
    repair_config(store, run, job, data)
    claim_run(store, run, job, data, lambda: find_fork(store, run))
    check_begun(store, run)
    repair_plan(store, run.key, workload.plan)


def _train(
    job: RunJob, store: Store, run: Run, workload: Workload, runtime: Runtime, progress: Progress, lease: Lease
) -> tuple[PreTrainedModel, TrainState]:
    training, scaler, plan = job.training, runtime.accelerator.scaler, workload.plan
    checkpoint, folder = _fetch_newest(store, run, workload, runtime)
    start = folder or fork_weights(store, run.key)
    _check_start(start, job, run, workload, runtime)
    model, objective, settings = place_model(training, workload, runtime, start)
    environment = describe_environment(runtime.device, runtime.ranks, training, plan.micro_batch)
    environment["attention"] = model.config._attn_implementation
    optimizer = make_optimizer(objective, training)
    schedule = make_schedule(optimizer, training, plan.total_steps)
    state = restore(folder, objective, optimizer, schedule, scaler) if folder else TrainState()
    runtime.on_first(lambda: note_environment(store, run.key, environment, state.step))
    attention = nullcontext if workload.pads else partial(prefer_cudnn_attention, runtime.device)
    if training.compile:
        batch = workload.read_batch(0 if workload.pads else state.attempts, runtime.rank)
        with attention():
            compile_objective(objective, model, runtime, batch, workload.pads)
    if checkpoint:
        store.release(f"{run.key}/{checkpoint}")
        log.info(
            "continuing from %s at step %d of %d", store.path(f"{run.key}/{checkpoint}"), state.step, plan.total_steps
        )
        if training.final == "best" and state.best_step not in (None, state.step):
            runtime.on_first(lambda: warn_of_damaged_best(store, run.key, state))
    with ExitStack() as stack:
        stack.enter_context(signal_handlers())
        runlog = _open_log(job, store, run, workload, schedule, state, lease, stack) if runtime.rank == 0 else None
        saver = _make_saver(job, store, run, workload, model, runtime, settings, lease, runlog)
        if saver:
            stack.enter_context(saver)
            if folder:
                saver.complete(state)
        tasks, peak = workload.tasks, peak_flops(runtime.device, training.precision) * runtime.ranks
        session = Session(
            training=training,
            plan=plan,
            runtime=runtime,
            model=model,
            objective=objective,
            # A sharded model's optimizer keeps its state next to the weights, which may not be on the device.
            optimizer=runtime.accelerator.prepare_optimizer(
                optimizer, device_placement=False if is_sharded(model) else None
            ),
            schedule=schedule,
            state=state,
            measure=partial(_measure_and_reshard, workload.measure, model, runtime),
            ask=partial(_measure_and_reshard, tasks.ask, model, runtime) if tasks else None,
            ask_every=tasks.every if tasks else None,
            criterion=_criterion(workload, run),
            log=runlog,
            saver=saver,
            meter=Meter(runtime.device, workload.flops_per_token(model), peak),
            bar=stack.enter_context(progress.bar("train", plan.total_steps, "step", done=state.step)),
            roll_back=partial(roll_back, store=store, run=run.key, workload=workload),
            attention=attention,
        )
        run_loop(session, batches_from(state.attempts, partial(workload.read_batch, rank=runtime.rank), runtime.device))
    return model, state


def _criterion(workload: Workload, run: Run) -> Criterion:
    """What decides the best checkpoint, with the identity of its evaluation."""
    return workload.criterion._replace(meaning=run.judged_by)


def _fetch_newest(store: Store, run: Run, workload: Workload, runtime: Runtime) -> tuple[str | None, Path | None]:
    """The checkpoint that training continues from, and its files. Sets the number of threads to the checkpoint's."""
    total = workload.plan.total_steps
    checkpoint = runtime.on_first(lambda: find_checkpoint(store, run.key, run.fingerprint, total))
    runtime.on_first(lambda: _warn_republished(store, run, checkpoint))
    if checkpoint is None:
        return None, None
    folder = retry_transient(lambda: fetch_artifact(store, f"{run.key}/{checkpoint}", CHECKPOINT_KIND))
    if computed := read_computed(folder):
        keep_threads(computed, runtime)
    return checkpoint, folder


def _check_start(start: Path | None, job: RunJob, run: Run, workload: Workload, runtime: Runtime) -> None:
    """Raise `PipelineError` unless training starts with the required weights."""
    runtime.on_first(lambda: _require_base(start, workload))
    begins = start is None or is_adapter(start)  # the pretrained weights of the job are read
    if begins and run.start is not None and run.start["origin"] == "folder":
        require_same_model(str(job.model.pretrained), runtime)


def _open_log(
    job: RunJob, store: Store, run: Run, workload: Workload, schedule: Any, state: TrainState, lease: Lease,
    stack: ExitStack,
) -> RunLog:  # fmt: skip
    """The run's records, and the trackers that receive them, until the stack closes."""
    _warn_temporary_base(_published_beside(job, workload))
    constant, settings = _constant_curves(schedule, workload.plan), job.model_dump(mode="json")
    trackers = stack.enter_context(Trackers(job.tracking, job.name, run.key.removeprefix("runs/"), settings))
    runlog = RunLog(store, run.key, state.step, settings, constant, lease.check, trackers, state.unmeasured)
    stack.enter_context(runlog)
    if workload.tasks is not None:
        runlog.note_tasks(state.step, workload.tasks.identities)
    criterion, goes_on = _criterion(workload, run), state.step < workload.plan.total_steps
    if goes_on and state.best_figure is not None and not state.judged_by(criterion):
        log.warning(
            "the evaluation during training, or the rule for its %s, has changed: results up to step %d no longer "
            "count, and the best checkpoint is chosen among later ones",
            state.best_figure, state.step,
        )  # fmt: skip
    return runlog


def _make_saver(
    job: RunJob, store: Store, run: Run, workload: Workload, model: PreTrainedModel, runtime: Runtime,
    settings: dict[str, Any], lease: Lease, runlog: RunLog | None,
) -> Saver | None:  # fmt: skip
    """The saver of this rank's part of the state; None if another rank saves all of it."""

    def check() -> None:
        if runlog is not None:
            lease.check()
            runlog.sync()

    training, ended = job.training, partial(ended_epoch, every=workload.plan.steps_per_epoch)
    options = SaverOptions(
        workload.files, run.fingerprint, training.keep_last, workload.criterion.figure, check, ended,
        training.keep_epochs, workload.base if runtime.rank == 0 else None,
    )  # fmt: skip
    if is_sharded(model):
        return PartSaver(store, run.key, model, options, runtime.with_own_group(), settings)
    return Saver(store, run.key, model, options) if runtime.rank == 0 else None


def _warn_republished(store: Store, run: Run, checkpoint: str | None) -> None:
    """Warn that the final model will be published again in another form, or that it must be trained again because no
    checkpoint is left.
    """
    with suppress(ArtifactError):  # a damaged one has already been reported
        final = final_manifest(store, run.key)
        if final is None:
            return
        if (form := final_form(final)) != run.form:
            log.warning(
                "%s is published again as %s, replacing %s: everything that refers to it, such as the champion of a "
                "name, gets that form", store.path(f"{run.key}/{FINAL}"), run.form, form,
            )  # fmt: skip
        if checkpoint is None:
            log.warning(
                "%s has no checkpoint left to publish its final model from: training it again", store.path(run.key)
            )


def _require_base(start: Path | None, workload: Workload) -> None:
    """Raise `ArtifactError` if training would continue an adapter of another base model."""
    if start is not None and is_adapter(start) and workload.base is not None:
        require_base(start, workload.base)


def _published_beside(job: RunJob, workload: Workload) -> Base | None:
    """The base model of the published adapter; None if a whole model is published."""
    return workload.base if job.model.lora is not None and job.model.lora.publish == "adapter" else None


def _warn_temporary_base(base: Base | None) -> None:
    """Warn about an adapter that cannot be loaded any more once another run continues."""
    if base is not None and base.key is not None and not base.key.endswith(f"/{FINAL}"):
        log.warning(
            "the adapter depends on %s, a checkpoint that its run may delete when it continues: start from a run's "
            "final model, or set model.lora.publish to merged",
            base.key,
        )


def _measure_and_reshard(
    measure: Callable[[PreTrainedModel, Runtime], T], model: PreTrainedModel, runtime: Runtime
) -> T:
    """Measure a model, then free the parameters that were gathered for it."""
    try:
        return measure(model, runtime)
    finally:
        reshard(model)


def _constant_curves(schedule: Any, plan: Plan) -> set[str]:
    """The curves without information: a learning rate that never changes."""
    rates = {rate for _, rate in planned_rates(schedule, plan.total_steps, plan.warmup_steps)}
    return {"train/learning_rate"} if len(rates) == 1 else set()


def _publish(
    job: RunJob,
    store: Store,
    run: Run,
    workload: Workload,
    model: PreTrainedModel,
    state: TrainState,
    lease: Lease,
    counts: dict[str, Any],
) -> ArtifactRef:
    """Publish the final model, which `from_pretrained` loads: the last, or the best if the job asks for that."""
    best = find_best(store, run.key, state) if job.training.final == "best" else None
    if best is not None:
        log.info("the final model is the best checkpoint, of step %d", best)
    saved = f"{run.key}/{folder_name(state.step if best is None else best)}"
    if best is not None and not is_sharded(model):
        model = workload.load_model(Path(find_model(store, saved).folder))
    base = _published_beside(job, workload)
    if is_adapted(model) and base is None:
        if getattr(job.model, "quantize", None):
            cast(Any, model).cpu()  # host memory holds its unquantised weights, as it did when it was loaded
        model = merge(model)
    with store.staging(sum(p.nbytes for p in model.parameters()), f"{run.key}/{FINAL}") as folder:
        if is_sharded(model):
            publish_parts(model, Path(find_model(store, saved).folder), folder)
        else:
            save_model(model, folder, base)
        for path in workload.files:
            (folder / path.name).write_bytes(path.read_bytes())
        details = {"run": run.fingerprint, "step": best, **counts, **workload.details}
        lease.check()
        manifest = publish_folder(store, folder, f"{run.key}/{FINAL}", FINAL_KIND, run.fingerprint, details)
    return ArtifactRef(key=run.key, fingerprint=run.fingerprint, size=manifest.size())
