"""The look at a job on conversations before long work starts: store, devices, model, template, conversations."""

from trainer.common.formats import count, plural
from trainer.common.progress import Progress
from trainer.common.stopping import check_stop
from trainer.config.chat import ConversationsConfig, ConversationsJob
from trainer.data.chat.encoded import Counts, empty_counts, read_conversations, tell
from trainer.data.chat.encoder import ChatEncoder, load_chat_encoder
from trainer.data.chat.messages import CONVERSATION, Form
from trainer.data.encoded import encoded_details, split_sizes
from trainer.data.labelled.look import HEAD_ROWS, WHOLE_BYTES, stored_bytes
from trainer.data.splits import find_splits
from trainer.kinds.lookup import kind_of
from trainer.kinds.tuning_preflight import Known, conclude, look_at_start, measure_size, recorded_lengths
from trainer.models.answering import check_fits
from trainer.models.loading import load_config
from trainer.preflight.harness import try_harness
from trainer.records.named_steps import look_for
from trainer.records.results import Lengths, TuningPreflight
from trainer.store.storage import Store


def look_at_conversations(
    job: ConversationsJob,
    progress: Progress,
    figures: list[str],
    form: Form = CONVERSATION,
    rows: int = 1,
) -> TuningPreflight:
    """Check everything that can be checked before work starts; `rows` are those of a sample. Raises the
    `PipelineError` of whatever is wrong.
    """
    start, kind = look_at_start(job), kind_of(job)
    encoder, config = load_chat_encoder(start.source, job.data), load_config(start.source)
    check_fits(config, job.model.pretrained, encoder.context, encoder.vocab_size)
    try_harness(job, job.evaluation.harness, config, encoder.tokenizer)
    encoded = look_for("encode", job, model_folder=start.source)
    if encoded is None:
        known, run = _look(start.store, job.data, encoder, form, progress), None
    else:
        details = encoded_details(start.store, encoded.key)
        lengths, plan = recorded_lengths(details, encoder.context), kind.plan(job, encoded, start.ranks).plan
        known = Known(split_sizes(details), f"encoded already: {encoded.key}", plan, lengths)
        run = kind.identify(job, encoded).key
    check_stop()
    return conclude(job, start, measure_size(job, start, config, rows * encoder.context), known, figures, run)


def _look(store: Store, data: ConversationsConfig, encoder: ChatEncoder, form: Form, progress: Progress) -> Known:
    """What a look shows: the sizes of the splits, if it is one at all of the data."""
    source = find_splits(store, data)
    parts = [part for each in source.parts.values() for part in each]
    counts = empty_counts(data, source)
    if sum(map(stored_bytes, parts)) <= WHOLE_BYTES:
        for _ in read_conversations(data, source, encoder, counts, progress, form=form):
            pass
        tell(data, counts)
        sizes = {split: each.examples for split, each in counts.items()}
        return Known(
            sizes, f"all of it, {plural(sum(sizes.values()), 'conversation')}", None, _lengths(counts, encoder)
        )
    for _ in read_conversations(data, source, encoder, counts, progress, most=HEAD_ROWS, form=form):
        pass
    told = f"the first {count(HEAD_ROWS)} conversations of each of {plural(len(parts), 'file')}"
    return Known(None, told, None, _lengths(counts, encoder))


def _lengths(counts: dict[str, Counts], encoder: ChatEncoder) -> dict[str, Lengths]:
    told = {split: each.told() for split, each in counts.items() if each.examples}
    return recorded_lengths({"splits": told}, encoder.context)
