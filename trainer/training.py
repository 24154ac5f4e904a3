"""Training a run, from its data or from its newest checkpoint to its published final model."""

import logging
from contextlib import nullcontext
from pathlib import Path

from transformers import PreTrainedModel

from trainer.batches import batches_from
from trainer.checkpoint import Saver, TrainState, find_checkpoint, restore
from trainer.config import PipelineJob
from trainer.errors import ArtifactError, RunError, TokenizerError
from trainer.evaluation import held_out_windows
from trainer.loop import Session, run_loop
from trainer.manifest import ArtifactRef, Manifest, publish_folder, read_manifest
from trainer.models import CausalLMLoss, build_model, load_model, resolve_config
from trainer.order import DataOrder
from trainer.plan import StepPlan, make_plan
from trainer.preparation import PreparedData, prepare
from trainer.progress import Progress
from trainer.runlog import RunLog
from trainer.runs import FINAL, FINAL_KIND, PLAN, Run, claim_run, difference, finished_run, identify_run
from trainer.runtime import Runtime, start_runtime
from trainer.shards import KIND as SHARDS
from trainer.shards import open_shards
from trainer.step import make_optimizer, make_schedule
from trainer.storage import Store
from trainer.throughput import Meter, flops_per_token, peak_flops
from trainer.tokenizer import load_tokenizer, tokenizer_files
from trainer.windows import Windows

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
    runtime.on_first(lambda: _claim(store, run, job, data, plan))
    model = _train(job, store, run, data, plan, runtime, progress)
    return runtime.on_first(lambda: _publish(store, run, job, data, model))


def shard_manifests(store: Store, data: PreparedData) -> list[Manifest]:
    """The manifests of all shard sets. Raises if one is missing, or was made with another tokenizer."""
    sha256 = load_tokenizer(store, data.tokenizer.key).sha256
    manifests = []
    for ref in data.shards:
        manifest = read_manifest(store, ref.key, SHARDS)
        if manifest is None:
            raise ArtifactError(f"{store.path(ref.key)} holds no published shards; run prepare-data first")
        if manifest.details["tokenizer_sha256"] != sha256:
            raise TokenizerError(
                f"{store.path(ref.key)} was tokenized with {manifest.details['tokenizer']}, not with {data.tokenizer.key}; "
                "prepare the data anew"
            )
        manifests.append(manifest)
    return manifests


def _claim(store: Store, run: Run, job: PipelineJob, data: PreparedData, plan: StepPlan) -> None:
    store.sweep()
    claim_run(store, run, job, data)
    store.write_json(f"{run.key}/{PLAN}", plan.model_dump())


def _train(
    job: PipelineJob, store: Store, run: Run, data: PreparedData, plan: StepPlan, runtime: Runtime, progress: Progress
) -> PreTrainedModel:
    training, accelerator = job.training, runtime.accelerator
    checkpoint = runtime.on_first(lambda: find_checkpoint(store, run.key))
    folder = store.fetch_folder(f"{run.key}/{checkpoint}") if checkpoint else None
    model = _load(job, store, data, folder)
    if training.gradient_checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    objective = accelerator.prepare_model(CausalLMLoss(model))
    if training.compile:
        objective.compile()
    optimizer = make_optimizer(objective, training)
    schedule = make_schedule(optimizer, training, plan.total_steps)
    state = restore(folder, objective, optimizer, schedule, accelerator.scaler) if folder else TrainState()
    state.ranks = runtime.ranks
    if folder:
        log.info("continuing from %s at step %d of %d", store.path(f"{run.key}/{checkpoint}"), state.step, plan.total_steps)

    sets = [open_shards(store, ref.key) for ref in data.shards]
    windows = [Windows(s.train, training.context, training.stride or training.context) for s in sets]
    weights = [corpus.probability for corpus in plan.corpora]
    order = DataOrder(training.seed, [s.corpus for s in sets], weights, [len(each) for each in windows])
    limit = job.evaluation.during_training
    held_out = [held_out_windows(s.corpus, s.validation, training.context, limit) for s in sets]
    flops = flops_per_token(model, model.config, training.context) * plan.tokens_per_step
    peak = peak_flops(runtime.device, training.precision) * runtime.ranks
    first = runtime.rank == 0
    extra = tokenizer_files(store, data.tokenizer.key)
    saver = Saver(store, run.key, model, extra, run.fingerprint, training.keep_last) if first else None
    recording = RunLog(store, run.key, state.step) if first else nullcontext()
    with recording as runlog, progress.bar("train", plan.total_steps, "step", done=state.step) as bar:
        session = Session(
            training, plan, runtime, model, objective, accelerator.prepare_optimizer(optimizer), schedule, state, held_out,
            job.evaluation.batch, runlog, saver, Meter(runtime.device, plan.tokens_per_step, flops, peak), bar,
        )  # fmt: skip
        run_loop(session, batches_from(state.attempts, plan, order, windows, runtime.rank, runtime.device))
        if saver is not None:
            saver.close()
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
