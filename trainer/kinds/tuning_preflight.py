"""Checks of jobs that tune a model before long work starts: those that all kinds share, and those of conversations."""

from typing import Any, NamedTuple

from trainer.common.display import plural
from trainer.common.progress import Progress
from trainer.common.stopping import check_stop
from trainer.config.chat import ConversationsConfig, ConversationsJob
from trainer.config.labelled import TuningJob
from trainer.data.chat.encoded import empty_counts, log_counts, read_conversations
from trainer.data.chat.encoder import ChatEncoder, load_chat_encoder, warn_of_other_prompt
from trainer.data.chat.messages import CONVERSATION, Form
from trainer.data.encoded import encoded_details, split_sizes
from trainer.data.labelled.look import describe_heads, rows_to_look_at
from trainer.data.splits import find_splits
from trainer.evaluation.harness_training import try_harness
from trainer.kinds.kind import kind_of
from trainer.models.causal import check_fits, sketch_model
from trainer.models.layers import refuse_skipping
from trainer.models.pretrained import find_pretrained, load_config
from trainer.models.weights import check_weights
from trainer.preflight.memory import Size, measure_size, require_memory
from trainer.preflight.resources import check_optimization, final_parameters, require_room, run_bytes
from trainer.records.plans import RunPlan
from trainer.records.results import Lengths, TuningPreflight
from trainer.records.steps import look_for
from trainer.store.probes import check_writable
from trainer.store.storage import Store
from trainer.training.identity import Run, check_origin, check_settings


class Start(NamedTuple):
    """What a job starts with: its store, its number of ranks, and the folder of the pretrained model."""

    store: Store
    ranks: int
    source: str


class Known(NamedTuple):
    """Facts about the data: split sizes, a description of what was checked, the plan (if all of it was checked),
    lengths of examples by split, the number of train examples of each class, and whether several may apply to one."""

    splits: dict[str, int] | None
    looked_at: str
    plan: RunPlan | None
    lengths: dict[str, Lengths]
    balance: dict[str, int] | None = None
    several_labels: bool = False


def recorded_lengths(details: dict[str, Any], most: int, rows: int = 1) -> dict[str, Lengths]:
    """Lengths of the examples of an encoded set, by split, from its manifest's details; of an example with several
    `rows`, the lengths of each row.

    Conversations without any answer left after truncation count as truncated; they are not examples.
    """
    return {
        name: Lengths(
            examples=split["examples"] + split.get("unanswered", 0),
            mean=split["tokens"] / max(1, split["examples"] * rows),
            longest=split["longest"],
            most=most,
            cut=split["truncated"],
        )
        for name, split in details["splits"].items()
    }


def check_run(store: Store, run: Run) -> str:
    """Return a run's key. Raises `RunError` if a run of that name exists with other settings or data."""
    check_settings(store, run)
    return run.key


def look_at_start(job: TuningJob) -> Start:
    """Check store, devices, batches and the pretrained model. Raises the `PipelineError` of the first problem."""
    store = Store(job.store)
    check_writable(store)
    store.sweep()
    check_origin(store, job)
    ranks = check_optimization(job)
    source = str(find_pretrained(store, job.model.pretrained).folder)
    check_weights(source)
    check_stop()
    return Start(store, ranks, source)


def conclude(
    job: TuningJob, start: Start, size: Size, data: Known, metrics: list[str], run: str | None
) -> TuningPreflight:
    """Check memory and disk space, and return what the job will do. `run` is its key, if it is already known."""
    plan, store = data.plan, start.store
    epochs = plan.total_steps // plan.steps_per_epoch if plan else job.training.epochs or 0
    steps = plan.total_steps if plan else job.training.max_steps
    final = final_parameters(job, size.trained, size.parameters)
    needed = {"runs": run_bytes(job.training, size.checkpoint, steps, epochs, final)}
    require_memory(job, size, start.ranks)
    require_room(store, needed, lambda _: store.used_bytes(run) if run else 0, size.trained, size.checkpoint)
    return TuningPreflight(
        model=job.model.pretrained,
        parameters=size.parameters,
        trained=size.trained,
        checkpoint_bytes=size.checkpoint,
        ranks=start.ranks,
        metrics=metrics,
        looked_at=data.looked_at,
        splits=data.splits,
        lengths=data.lengths,
        balance=data.balance,
        several_labels=data.several_labels,
        plan=plan,
        about_memory_bytes=size.memory.device,
        about_host_bytes=size.memory.host,
    )


def look_at_conversations(
    job: ConversationsJob,
    progress: Progress,
    form: Form = CONVERSATION,
    rows: int = 1,
) -> TuningPreflight:
    """Check everything that can be checked before work starts; `rows` is the number of rows of one sample. Raises the
    `PipelineError` of the first problem.
    """
    start, kind = look_at_start(job), kind_of(job)
    encoder, config = load_chat_encoder(start.source, job.data), load_config(start.source)
    check_fits(config, job.model.pretrained, encoder.context, encoder.vocab_size)
    warn_of_other_prompt(encoder)
    if start.ranks > 1 and form is CONVERSATION:  # preference tuning skips no layers
        refuse_skipping(config)
    try_harness(job, job.evaluation.harness, config, encoder.tokenizer)
    encoded = look_for("encode", job, model_folder=start.source)
    if encoded is None:
        known, run = _read_data(start.store, job.data, encoder, form, rows, progress), None
    else:
        details = encoded_details(start.store, encoded.key)
        lengths, plan = recorded_lengths(details, encoder.context, rows), kind.plan(job, encoded, start.ranks).plan
        known = Known(split_sizes(details), f"encoded already: {encoded.key}", plan, lengths)
        run = check_run(start.store, kind.identify(job, encoded))
    check_stop()
    sketch = sketch_model(config, job.model.attention, job.model.lora)
    size = measure_size(job, sketch, start.ranks, rows * encoder.context)
    return conclude(job, start, size, known, list(job.figures), run)


def _read_data(
    store: Store, data: ConversationsConfig, encoder: ChatEncoder, form: Form, rows: int, progress: Progress
) -> Known:
    """Read all of the data if that takes seconds, else a sample; the split sizes are known only in the first case."""
    source = find_splits(store, data)
    parts = [part for each in source.parts.values() for part in each]
    counts, most = empty_counts(data, source), rows_to_look_at(parts)
    for _ in read_conversations(data, source, encoder, counts, progress, most=most, form=form):
        pass
    found = {split: each.as_details() for split, each in counts.items() if each.examples}
    lengths = recorded_lengths({"splits": found}, encoder.context, rows)
    if most is not None:
        return Known(None, describe_heads(f"{form.name}s", parts), None, lengths)
    log_counts(data, counts)
    sizes = {split: each.examples for split, each in counts.items()}
    return Known(sizes, f"all {plural(sum(sizes.values()), form.name)}", None, lengths)
