"""What the looks at jobs that tune a model have in common: how they begin, and what they tell in the end."""

from typing import Any, NamedTuple

from transformers import AutoModelForCausalLM as CAUSAL
from transformers import PretrainedConfig

from trainer.common.stopping import check_stop
from trainer.config.labelled import TuningJob
from trainer.models.causal import count_adapted, count_units
from trainer.models.pretrained import find_model
from trainer.models.quantized import check_installed
from trainer.models.weights import check_weights
from trainer.preflight.resources import (
    Memory,
    check_optimization,
    checkpoint_bytes,
    estimate_memory,
    final_parameters,
    guess_activations,
    library_bytes,
    require_checkpoint_room,
    require_memory,
    require_room,
    run_bytes,
)
from trainer.records.plans import RunPlan
from trainer.records.results import Lengths, TuningPreflight
from trainer.store.storage import Store
from trainer.training.identity import check_origin


class Start(NamedTuple):
    """What a job starts with: its store, its ranks, and the folder of the pretrained model."""

    store: Store
    ranks: int
    source: str


class Size(NamedTuple):
    """The parameters that are trained, those of the whole model, and what a rank takes of memory."""

    trained: int
    parameters: int
    memory: Memory


def measure_size(job: TuningJob, start: Start, config: PretrainedConfig, length: int, model: Any = CAUSAL) -> Size:
    """The parameters of a model of this configuration, and the memory that examples of so many tokens take."""
    training = job.training
    trained, parameters = count_adapted(config, job.model.attention, job.model.lora, model)
    units = count_units(config, job.model.attention, model) if training.sharding == "fsdp" else None
    kept, libraries = guess_activations(config, training), library_bytes()
    quantize = getattr(job.model, "quantize", None)
    check_installed(quantize)
    memory = estimate_memory(
        training, length, config, start.ranks, parameters, kept, libraries, units, trained, quantize
    )
    return Size(trained, parameters, memory)


class Known(NamedTuple):
    """What is known of the data: the sizes of its splits, what was looked at, the plan, if all of it was, the lengths
    of examples by split, and how many there are of each class in train."""

    splits: dict[str, int] | None
    told: str
    plan: RunPlan | None
    lengths: dict[str, Lengths]
    balance: dict[str, int] | None = None


def recorded_lengths(details: dict[str, Any], most: int) -> dict[str, Lengths]:
    """The lengths of the examples of an encoded set, by split, as its details tell them.

    Conversations of which no answer is left are among those that are cut, and no examples.
    """
    return {
        name: Lengths(
            examples=split["examples"] + split.get("unanswered", 0),
            mean=split["tokens"] / max(1, split["examples"]),
            longest=split["longest"],
            most=most,
            cut=split["truncated"],
        )
        for name, split in details["splits"].items()
    }


def look_at_start(job: TuningJob) -> Start:
    """Check store, devices, batches and the pretrained model. Raises the `PipelineError` of whatever is wrong."""
    store = Store(job.store)
    store.check_writable()
    store.sweep()
    check_origin(store, job)
    ranks = check_optimization(job)
    source = str(find_model(store, job.model.pretrained, hub=True).folder)
    check_weights(source)
    check_stop()
    return Start(store, ranks, source)


def conclude(
    job: TuningJob, start: Start, size: Size, data: Known, metrics: list[str], run: str | None
) -> TuningPreflight:
    """Check that there is room for the run, and tell what the job will do; `run` is its key, if that is known by
    now.
    """
    plan, store = data.plan, start.store
    epochs = plan.total_steps // plan.steps_per_epoch if plan else job.training.epochs or 0
    final = final_parameters(job, size.trained, size.parameters)
    needed = {"runs": run_bytes(job.training, size.trained, epochs, final)}
    require_memory(job, size.trained, size.parameters, start.ranks, size.memory)
    require_room(store, needed, lambda _: store.used_bytes(run) if run else 0, size.trained)
    require_checkpoint_room(store, checkpoint_bytes(size.trained))
    return TuningPreflight(
        model=job.model.pretrained,
        parameters=size.parameters,
        trained=size.trained,
        ranks=start.ranks,
        metrics=metrics,
        looked_at=data.told,
        splits=data.splits,
        lengths=data.lengths,
        balance=data.balance,
        plan=plan,
        about_memory_bytes=size.memory.device,
        about_host_bytes=size.memory.host,
    )
