"""Measuring a language model, from a run or any other checkpoint, and generating samples with it."""

import logging
from contextlib import nullcontext
from functools import partial
from typing import cast

from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, PretrainedConfig, PreTrainedModel

from trainer.common.display import plural
from trainer.common.errors import ConfigError, TokenizerError
from trainer.common.progress import Progress
from trainer.config.evaluation import EvaluationConfig
from trainer.config.jobs import EvaluateJob
from trainer.data.dataset import open_held_out
from trainer.data.order import stable_key
from trainer.data.shards import ShardSet, open_shards
from trainer.evaluation.decontamination import clean_of
from trainer.evaluation.measurement import Measurement
from trainer.evaluation.scoring import generate_each
from trainer.kinds.pretraining.kind import Reading
from trainer.kinds.pretraining.measure import evaluate
from trainer.models.causal import check_one_scale, check_positions, load_model
from trainer.models.generation import continue_tokens
from trainer.models.outline import outline_files
from trainer.models.pretrained import Checkpoint, most_positions
from trainer.models.taken_tokenizer import VOCABULARIES, read_vocabulary
from trainer.models.tokenizer import TOKENIZER_FILE, load_tokenizer, mask_tokens, vocabulary
from trainer.models.trial import reading_apart
from trainer.records.basis import text_basis
from trainer.records.evaluations import Result, Sample
from trainer.records.run_names import run_at
from trainer.store.storage import Store
from trainer.training.parallelize import place_measured
from trainer.training.runtime import Runtime
from trainer.training.sharding import sharding_group

log = logging.getLogger(__name__)

SHOWN = 60
"""Characters of a prompt that a message shows."""


def continue_prompts(
    model: PreTrainedModel, tokenizer: Tokenizer, eos_id: int, options: EvaluationConfig, runtime: Runtime
) -> list[Sample]:
    """Continue each prompt by up to `new_tokens` tokens; an empty prompt starts a new document.

    Called by every rank.
    """
    positions = most_positions(model.config)
    kept = max(1, positions - options.new_tokens)

    def continued(prompt: str) -> Sample:
        ids = tokenizer.encode(prompt, add_special_tokens=False).ids or [eos_id]
        if len(ids) > kept:
            log.warning(
                "only the end of a prompt of %d tokens is continued, %s: the model has %d positions, and "
                "evaluation.new_tokens is %d; lower it, or shorten the prompt %r",
                len(ids), plural(kept, "token"), positions, options.new_tokens, prompt[:SHOWN],
            )  # fmt: skip
        tokens = continue_tokens(
            model, ids[-kept:], options.new_tokens, eos_id,
            options.temperature, options.top_k, stable_key(options.seed, prompt),  # other draws for each prompt
        )  # fmt: skip
        return Sample(prompt=prompt, continuation=tokenizer.decode(tokens))

    return generate_each(model, options.prompts, continued, runtime)


def check_context(config: PretrainedConfig, read: Reading) -> None:
    """Raise `ConfigError` if the model cannot read windows of this length, or documents apart in them."""
    check_positions(config, read.context, "context")
    if read.document_mask:
        check_one_scale(config, read.context, "context")


def measure_text(measurement: Measurement, progress: Progress, runtime: Runtime) -> Result:
    """Score a language model on held-out text and continue the prompts with it. Called by every rank.

    Raises `TokenizerError` if the shards were made with another tokenizer, `ConfigError` if they hold no held-out text.
    """
    job, read = cast(tuple[EvaluateJob, Reading], measurement.settings)
    store, found, masking, context = Store(job.store), measurement.model, read.masking, read.context
    if masking is not None:
        _check_masked(job)
    sets = [open_shards(store, shard_set) for shard_set in read.shards]
    tokenizer = _tokenizer(store, found, sets)
    run = run_at(store, found.key)
    clean = runtime.on_first(lambda: clean_of(store, run)) if run else None  # before long work, as it may raise
    kind = AutoModelForCausalLM if masking is None else AutoModelForMaskedLM
    load = partial(load_model, found.folder, beside=found.beside, kind=kind)
    with sharding_group(job, runtime):
        model = place_measured(job, runtime, partial(outline_files, found.folder, None), load)
        check_context(model.config, read)
        vocab_size = model.config.get_text_config().vocab_size
        if any(shard_set.details["vocab_size"] > vocab_size for shard_set in sets):
            raise TokenizerError(
                f"the shards hold ids beyond the {vocab_size} embeddings of {job.checkpoint}; use shards made with its "
                "tokenizer"
            )
        held_out = [open_held_out(store, s, context, job.evaluation.max_windows, read.document_mask) for s in sets]
        if not any(corpus.windows for corpus in held_out):
            raise ConfigError(
                f"{', '.join(read.shards)} hold no held-out text; prepare them with data.validation_fraction above 0"
            )
        with progress.bar("evaluate", sum(len(corpus.windows) for corpus in held_out), "window") as bar:
            hiding = None
            if masking is not None:
                hiding = mask_tokens(load_tokenizer(store, sets[0].tokenizer), masking.mask_token), masking
            with reading_apart(model, context) if read.document_mask else nullcontext():
                scores = evaluate(model, held_out, context, job.evaluation.batch, runtime, bar.advance, hiding)
        samples = continue_prompts(model, tokenizer, sets[0].details["eos_id"], job.evaluation, runtime)
    hidden = masking.model_dump() if masking else None
    details, most = [s.details for s in sets], job.evaluation.max_windows
    return measurement.result(
        by="corpus",
        groups=scores.groups,
        total=scores.total,
        samples=samples,
        measured_on=text_basis(read.shards, details, context, most, job.precision, hidden, read.document_mask),
        clean_of=clean,
    )


def _check_masked(job: EvaluateJob) -> None:
    """Raise `ConfigError` for settings that do not apply to a masked model."""
    if job.evaluation.prompts:
        raise ConfigError(
            f"{job.checkpoint} is a masked language model, which cannot continue text; remove evaluation.prompts"
        )
    if job.sharding == "fsdp":
        raise ConfigError(
            f"{job.checkpoint} is a masked language model, which cannot be sharded yet; set sharding to none"
        )


def _tokenizer(store: Store, found: Checkpoint, sets: list[ShardSet]) -> Tokenizer:
    """The shards' tokenizer; if the checkpoint contains a tokenizer, it must be the same.

    Shards that were reused may name an older tokenizer than the others, with the same content.
    """
    tokenizers = {key: load_tokenizer(store, key) for key in sorted({shard_set.tokenizer for shard_set in sets})}
    if len(set(tokenizers.values())) > 1:
        raise TokenizerError(f"the shards were made with different tokenizers: {', '.join(tokenizers)}")
    key, tokenizer = next(iter(tokenizers.items()))
    carried = found.files.get(TOKENIZER_FILE)
    if carried is not None and carried != tokenizer.sha256:
        raise TokenizerError(
            f"{found.folder} contains another tokenizer than {key}, which made {', '.join(s.key for s in sets)}; "
            "use shards made with the checkpoint's tokenizer"
        )
    if carried is None and not found.files.keys() & {*VOCABULARIES}:
        log.warning("%s contains no tokenizer: whether it reads the ids of these shards is not known", found.folder)
    elif carried is None and read_vocabulary(found.folder) != vocabulary(tokenizer.json):
        raise TokenizerError(
            f"the tokenizer of {found.folder} has another vocabulary than {key}, which made "
            f"{', '.join(s.key for s in sets)}; use shards made with the checkpoint's tokenizer"
        )
    return Tokenizer.from_str(tokenizer.json)
