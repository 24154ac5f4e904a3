"""The look at an instruction-tuning job before long work starts: store, devices, model, template, conversations."""

from trainer.common.formats import count, plural
from trainer.common.progress import Progress
from trainer.common.stopping import check_stop
from trainer.config.chat import CHAT_FIGURES, ChatJob
from trainer.data.chat.encoded import Counts, empty_counts, plan_chat, read_conversations, tell
from trainer.data.chat.encoder import ChatEncoder, load_chat_encoder
from trainer.data.encoded import split_sizes
from trainer.data.labelled.look import HEAD_ROWS, WHOLE_BYTES, stored_bytes
from trainer.data.splits import find_splits
from trainer.kinds.chat.identity import identify
from trainer.kinds.tuning_preflight import Known, Size, conclude, look_at_start, recorded_lengths
from trainer.models.answering import check_fits
from trainer.models.causal import count_adapted, count_units
from trainer.models.loading import load_config
from trainer.preflight.harness import try_harness
from trainer.preflight.resources import estimate_memory, guess_activations, library_bytes
from trainer.records.named_steps import look_for
from trainer.records.results import FinetunePreflight, Lengths
from trainer.store.storage import Store


def chat_preflight(job: ChatJob, progress: Progress) -> FinetunePreflight:
    """Check everything that can be checked before work starts. Raises the `PipelineError` of whatever is wrong."""
    start, training = look_at_start(job), job.training
    store, ranks, source = start
    encoder = load_chat_encoder(source, job.data)
    config = load_config(source)
    check_fits(config, job.model.pretrained, encoder.context, encoder.vocab_size)
    try_harness(job.evaluation.harness, job.promotion, config, encoder.tokenizer)
    trained, parameters = count_adapted(config, job.model.attention, job.model.lora)
    encoded = look_for("encode-chat", job, model_folder=source)
    plan, data = plan_chat(job, encoded.key, ranks) if encoded else (None, None)
    if data and encoded:
        lengths = recorded_lengths(data.details, encoder.context)
        known = Known(split_sizes(data.details), f"encoded already: {encoded.key}", plan, lengths)
    else:
        known = _look(store, job, encoder, progress)
    check_stop()
    units = count_units(config, job.model.attention) if training.sharding == "fsdp" else None
    kept = guess_activations(config, training)
    memory = estimate_memory(
        training, encoder.context, config, ranks, parameters, kept, library_bytes(), units, trained
    )
    run = identify(job, encoded).key if encoded else None
    return conclude(job, start, Size(trained, parameters, memory), known, list(CHAT_FIGURES), run)


def _look(store: Store, job: ChatJob, encoder: ChatEncoder, progress: Progress) -> Known:
    """What a look shows: the sizes of the splits, if it is one at all of the data."""
    source = find_splits(store, job.data)
    parts = [part for each in source.parts.values() for part in each]
    counts = empty_counts(job.data, source)
    if sum(map(stored_bytes, parts)) <= WHOLE_BYTES:
        for _ in read_conversations(job, source, encoder, counts, progress):
            pass
        tell(job, counts)
        sizes = {split: each.examples for split, each in counts.items()}
        return Known(
            sizes, f"all of it, {plural(sum(sizes.values()), 'conversation')}", None, _lengths(counts, encoder)
        )
    for _ in read_conversations(job, source, encoder, counts, progress, most=HEAD_ROWS):
        pass
    told = f"the first {count(HEAD_ROWS)} conversations of each of {plural(len(parts), 'file')}"
    return Known(None, told, None, _lengths(counts, encoder))


def _lengths(counts: dict[str, Counts], encoder: ChatEncoder) -> dict[str, Lengths]:
    told = {split: each.told() for split, each in counts.items() if each.examples}
    return recorded_lengths({"splits": told}, encoder.context)
