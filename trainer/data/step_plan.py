"""The step plan: a run's windows, steps and tokens, and each corpus's probability; the trainer checks that it holds."""

import logging
import math
from collections.abc import Mapping

from trainer.common.display import plural
from trainer.common.errors import ConfigError, CorpusError
from trainer.config.jobs import PipelineJob
from trainer.config.labelled import TuningJob
from trainer.config.runs import RunJob
from trainer.config.training import OptimizationConfig, TrainingConfig
from trainer.data.packing import Packing, count_packed
from trainer.data.shard_files import count_windows
from trainer.data.shards import open_shards
from trainer.data.tokenization import shard_manifests
from trainer.records.plans import CorpusPlan, Plan, PreparedData, StepPlan, TuningPlan
from trainer.store.manifest import Manifest
from trainer.store.storage import Store

log = logging.getLogger(__name__)


def plan_run(store: Store, data: PreparedData, job: PipelineJob, ranks: int) -> StepPlan:
    """Plan a pretraining run on published shards; raises as `shard_manifests`, `make_plan` and `check_patience` do."""
    return plan_shards(store, data, shard_manifests(store, data), job, ranks)


def plan_shards(store: Store, data: PreparedData, manifests: list[Manifest], job: PipelineJob, ranks: int) -> StepPlan:
    """Do the same, given the manifests of the shards."""
    training, packed = job.training, None
    if training.packing != "stream":
        sets = [open_shards(store, ref.key) for ref in data.shards]
        packed = {each.corpus: count_packed(store, each, training.context) for each in sets}
    plan = make_plan(training, manifests, ranks, packed)
    check_patience(job, plan.steps_per_epoch, plan.total_steps)
    return plan


def make_plan(
    training: TrainingConfig, shard_sets: list[Manifest], ranks: int, packed: Mapping[str, list[int]] | None = None
) -> StepPlan:
    """Plan a pretraining run; `packed` has the windows of each shard by corpus, if documents are packed.

    Corpus i is drawn with probability n_i ** alpha / sum_j n_j ** alpha, n in training tokens. Raises `CorpusError` for
    a corpus smaller than one window, `ConfigError` if the batch does not divide or the warm-up exceeds the run.
    """
    if packed is None:
        windows, unused = _cut_stream(training, shard_sets)
    else:
        windows, unused = {name: sum(counts) for name, counts in packed.items()}, dict.fromkeys(packed, 0)
    if empty := [name for name, count in windows.items() if not count]:
        raise CorpusError(f"corpus {empty[0]!r} has no document to train on; use more text, or hold out less of it")
    plan = plan_batches(training, sum(windows.values()), ranks)
    counts = {shards.details["corpus"]: shards.details["totals"] for shards in shard_sets}
    weights = {name: counts[name]["tokens"] ** training.alpha for name in windows}
    whole = math.fsum(weights.values())  # `sum` rounds otherwise since Python 3.12
    probability = {name: weight / whole for name, weight in weights.items()}
    total = sum(counts[name]["tokens"] for name in windows)
    per_window = {
        name: training.context if packed is None else counts[name]["tokens"] / windows[name] for name in windows
    }
    tokens_per_window = [probability[name] * per_window[name] for name in windows]
    return StepPlan(
        corpora=[
            CorpusPlan(
                name=name,
                documents=counts[name]["documents"],
                tokens=counts[name]["tokens"],
                unused_tokens=unused[name],
                validation_tokens=counts[name]["validation_tokens"],
                windows=windows[name],
                probability=probability[name],
                passes=plan.total_steps * training.global_batch * probability[name] / windows[name],
            )
            for name in windows
        ],
        windows=sum(windows.values()),
        tokens_per_step=round(training.global_batch * math.fsum(tokens_per_window)),
        fill=None if packed is None else total / (sum(windows.values()) * training.context),
        **plan.model_dump(),
    )


def _cut_stream(training: TrainingConfig, shard_sets: list[Manifest]) -> tuple[dict[str, int], dict[str, int]]:
    """The windows of each corpus over its stream of documents, and the tokens outside all windows."""
    stride = training.stride or training.context
    windows, unused = {}, {}
    for shards in shard_sets:
        name, sizes = shards.details["corpus"], shards.details["shard_tokens"]
        windows[name] = sum(count_windows(size, training.context, stride) for size in sizes)
        unused[name] = sum(size for size in sizes if size < training.context)
        if not windows[name]:
            raise CorpusError(
                f"corpus {name!r} is smaller than one window: its largest shard has {max(sizes)} tokens, "
                f"training.context is {training.context}; use more text, fewer shards or a smaller context"
            )
        if unused[name]:
            log.warning("corpus %s: %d tokens unused, in shards shorter than one window", name, unused[name])
    return windows, unused


def make_tuning_plan(
    job: TuningJob, splits: Mapping[str, int], ranks: int, unit: str = "example",
    windows: Packing | None = None, answer_tokens: int | None = None,
) -> TuningPlan:  # fmt: skip
    """Plan a run over splits of the given sizes; `windows` if the examples are packed, `answer_tokens` if only answers
    are predicted.

    Raises `ConfigError` as `plan_batches` and `check_patience` do.
    """
    batches = plan_batches(job.training, splits["train"] if windows is None else len(windows), ranks)
    check_patience(job, batches.steps_per_epoch, batches.total_steps)
    return TuningPlan(
        unit=unit,
        examples=splits["train"],
        validation_examples=splits.get("validation", 0),
        windows=None if windows is None else len(windows),
        fill=None if windows is None else windows.fill,
        answer_tokens=answer_tokens,
        **batches.model_dump(),
    )


def plan_batches(training: OptimizationConfig, samples: int, ranks: int) -> Plan:
    """Plan the steps over this many samples: total = epochs x ceil(samples / global batch), or max_steps.

    Raises `ConfigError` if the batch does not divide, or if the warm-up or decay exceeds the run.
    """
    micro_batch, accumulation = divide_batch(training, ranks)
    steps_per_epoch = -(-samples // training.global_batch)
    total_steps = training.max_steps or steps_per_epoch * (training.epochs or 1)
    if training.warmup_steps > total_steps:
        raise ConfigError(
            f"training.warmup_steps is {training.warmup_steps}, but the whole run has {total_steps} steps"
        )
    check_decay(training, total_steps)
    return Plan(
        global_batch=training.global_batch,
        ranks=ranks,
        micro_batch=micro_batch,
        accumulation=accumulation,
        steps_per_epoch=steps_per_epoch,
        total_steps=total_steps,
        warmup_steps=training.warmup_steps,
    )


def check_decay(training: OptimizationConfig, total_steps: int) -> None:
    """Raise `ConfigError` if the parts of a `warmup_stable_decay` exceed the run, or leave steps with rate 0."""
    options = training.schedule_options
    stable, decay = options.get("num_stable_steps"), options.get("num_decay_steps")
    if training.schedule != "warmup_stable_decay" or not isinstance(decay, int) or not isinstance(stable or 0, int):
        return  # the schedule itself reports missing options and wrong types
    parts = training.warmup_steps + int(stable or 0) + decay
    if parts > total_steps or (stable is not None and parts < total_steps and not options.get("min_lr_ratio")):
        named = "num_decay_steps" if stable is None else "num_stable_steps and num_decay_steps"
        last = f", which leaves {total_steps - parts} with the learning rate 0" if parts < total_steps else ""
        raise ConfigError(
            f"training.warmup_steps, {named} of training.schedule_options are {parts} steps together, but the whole "
            f"run has {total_steps}{last}"
        )


def check_patience(job: RunJob, steps_per_epoch: int, total_steps: int) -> None:
    """Raise `ConfigError` if early stopping could not trigger before the run's last evaluation."""
    patience, every = job.training.early_stopping, job.judged_every
    if patience is None:
        return
    evaluations = step = 0
    while step < total_steps and evaluations <= patience + 1:
        step = min(total_steps, *((step // period + 1) * period for period in (steps_per_epoch, *every)))
        evaluations += 1
    if evaluations > patience + 1:
        return
    when = (
        f"every {' and every '.join(map(str, every))} steps, at most"
        if every
        else "at the end of each epoch and of the run"
    )
    raise ConfigError(
        f"training.early_stopping is {patience}, but the run is evaluated {plural(evaluations, 'time')} in all "
        f"({when}), so it can never stop early; set a smaller training.evaluate_every, or remove early_stopping"
    )


def divide_batch(training: OptimizationConfig, ranks: int) -> tuple[int, int]:
    """Micro-batch and accumulation: global batch = micro-batch x ranks x accumulation. Raises `ConfigError`."""
    if training.global_batch % ranks:
        raise ConfigError(f"training.global_batch {training.global_batch} does not divide among {ranks} ranks")
    share = training.global_batch // ranks
    micro_batch = training.micro_batch or share
    if share % micro_batch:
        raise ConfigError(
            f"training.global_batch {training.global_batch} on {ranks} ranks is {share} samples each, which "
            f"micro_batch {micro_batch} does not divide"
        )
    return micro_batch, share // micro_batch
