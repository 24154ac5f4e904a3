"""Training a run, from its data or from its newest checkpoint to its published final model."""

import logging
from contextlib import ExitStack
from pathlib import Path

from transformers import PreTrainedModel

from trainer.batches import batches_from
from trainer.checkpoint import Saver, TrainState, find_checkpoint, restore
from trainer.config import PipelineJob
from trainer.dataset import open_dataset
from trainer.environment import describe_environment
from trainer.errors import RunError
from trainer.loop import Session, run_loop
from trainer.losses import CausalLMLoss
from trainer.manifest import ArtifactRef, publish_folder
from trainer.models import build_model, checkpoint_activations, load_model, resolve_config
from trainer.plan import StepPlan, make_plan
from trainer.preparation import PreparedData, prepare, shard_manifests
from trainer.progress import Progress
from trainer.runlog import RunLog
from trainer.runs import ENVIRONMENT, FINAL, FINAL_KIND, PLAN, Run, claim_run, difference, finished_run, identify_run
from trainer.runtime import Runtime, compile_objective, start_runtime
from trainer.step import make_optimizer, make_schedule
from trainer.stopping import StopSignal
from trainer.storage import Store
from trainer.throughput import Meter, flops_per_token, peak_flops
from trainer.tokenizer import load_tokenizer, tokenizer_files

log = logging.getLogger(__name__)


def train(
    job: PipelineJob, progress: Progress, data: PreparedData | None = None, expected: StepPlan | None = None
) -> ArtifactRef:
    """Train to the end and publish the final model; continues from the newest checkpoint, reuses a finished run.

    Called by every rank. `data` defaults to preparing it here, on rank 0; `expected` is a plan that must come out the same.
    Raises `RunError` if the run's folder or the plan disagree with the job.
    """
    runtime = start_runtime(job.training.precision)
    store = Store(job.store)
    data = data or runtime.on_first(lambda: prepare(job, progress))
    run = identify_run(job, data)
    finished = runtime.on_first(lambda: finished_run(store, run))
    if finished is not None:
        return finished
    plan = make_plan(job.training, shard_manifests(store, data), runtime.ranks)
    if expected is not None and plan != expected:
        differences = "; ".join(difference(expected.model_dump(), plan.model_dump()))
        raise RunError(f"the trainer's step plan is not the one it was given: {differences}")
    runtime.on_first(lambda: _claim(store, run, job, data, plan, runtime))
    with store.explained_when_full(run.key):
        model = _train(job, store, run, data, plan, runtime, progress)
    return runtime.on_first(lambda: _publish(store, run, job, data, model))


def _claim(store: Store, run: Run, job: PipelineJob, data: PreparedData, plan: StepPlan, runtime: Runtime) -> None:
    store.sweep()
    claim_run(store, run, job, data)
    store.write_json(f"{run.key}/{PLAN}", plan.model_dump())
    environment = describe_environment(runtime.device, runtime.ranks, job.training.precision)
    store.write_json(f"{run.key}/{ENVIRONMENT}", environment)


def _train(
    job: PipelineJob, store: Store, run: Run, data: PreparedData, plan: StepPlan, runtime: Runtime, progress: Progress
) -> PreTrainedModel:
    training, accelerator = job.training, runtime.accelerator
    checkpoint = runtime.on_first(lambda: find_checkpoint(store, run.key))
    folder = store.fetch_folder(f"{run.key}/{checkpoint}") if checkpoint else None
    model = _load(job, store, data, folder)
    if training.gradient_checkpointing:
        checkpoint_activations(model)
    objective = accelerator.prepare_model(CausalLMLoss(model))
    if training.compile:
        compile_objective(objective, runtime)
    optimizer = make_optimizer(objective, training)
    schedule = make_schedule(optimizer, training, plan.total_steps)
    state = restore(folder, objective, optimizer, schedule, accelerator.scaler) if folder else TrainState()
    if folder:
        log.info("continuing from %s at step %d of %d", store.path(f"{run.key}/{checkpoint}"), state.step, plan.total_steps)
    dataset = open_dataset(store, data, training, plan, job.evaluation.during_training)
    batches = batches_from(state.attempts, plan, dataset.order, dataset.windows, runtime.rank, runtime.device)
    flops = flops_per_token(model, model.config, training.context) * plan.tokens_per_step
    meter = Meter(runtime.device, plan.tokens_per_step, flops, peak_flops(runtime.device, training.precision) * runtime.ranks)
    with ExitStack() as stack:
        stop = stack.enter_context(StopSignal())
        runlog = saver = None
        if runtime.rank == 0:
            runlog = stack.enter_context(RunLog(store, run.key, state.step))
            files = tokenizer_files(store, data.tokenizer.key)
            saver = stack.enter_context(Saver(store, run.key, model, files, run.fingerprint, training.keep_last))
        bar = stack.enter_context(progress.bar("train", plan.total_steps, "step", done=state.step))
        session = Session(
            training, plan, runtime, model, objective, accelerator.prepare_optimizer(optimizer), schedule, state,
            dataset.held_out, job.evaluation.batch, runlog, saver, meter, bar, stop,
        )  # fmt: skip
        run_loop(session, batches)
    return model


def _load(job: PipelineJob, store: Store, data: PreparedData, folder: Path | None) -> PreTrainedModel:
    if folder is not None:
        return load_model(folder, job.model.attention)
    config = resolve_config(job.model, load_tokenizer(store, data.tokenizer.key), job.training.context)
    return build_model(job.model, config, job.training.seed)


def _publish(store: Store, run: Run, job: PipelineJob, data: PreparedData, model: PreTrainedModel) -> ArtifactRef:
    """Publish the final model, as `from_pretrained` loads it."""
    with store.staging() as folder:
        model.save_pretrained(folder)
        for path in tokenizer_files(store, data.tokenizer.key):
            (folder / path.name).write_bytes(path.read_bytes())
        details = {"run": run.fingerprint, "context": job.training.context, "shards": [ref.key for ref in data.shards]}
        manifest = publish_folder(store, folder, f"{run.key}/{FINAL}", FINAL_KIND, run.fingerprint, details)
    return ArtifactRef(key=run.key, fingerprint=run.fingerprint, size=manifest.size())
