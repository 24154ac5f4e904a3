"""Measuring a checkpoint: the trained one at the end of the pipeline, or any other."""

import math
from functools import partial

from tokenizers import Tokenizer

from trainer.common.errors import ConfigError, TokenizerError
from trainer.common.progress import Progress
from trainer.config.jobs import EvaluateJob
from trainer.data.held_out import open_held_out
from trainer.data.shards import ShardSet, open_shards
from trainer.evaluation.cache import FORMAT, find_evaluation, identify_evaluation
from trainer.evaluation.checkpoint_scoring import identify_checkpoint
from trainer.evaluation.clean import clean_of
from trainer.evaluation.generation import continue_prompts
from trainer.evaluation.held_out_loss import evaluate
from trainer.evaluation.masked_loss import evaluate_masked
from trainer.models.causal import check_positions, load_masked, load_model
from trainer.models.outline import outline_files
from trainer.models.pretrained import Checkpoint
from trainer.models.tokenizer import TOKENIZER_FILE, load_tokenizer, mask_tokens
from trainer.records.basis import text_basis
from trainer.records.evaluations import Evaluation, RunEvaluation
from trainer.records.names import run_at
from trainer.records.sealed import write_sealed
from trainer.store.storage import Store
from trainer.training.parallelize import place_measured
from trainer.training.rank_watchdog import explaining_lost_ranks
from trainer.training.runtime import start_runtime
from trainer.training.sharding import sharding_group


def evaluate_any(job: EvaluateJob, progress: Progress) -> RunEvaluation:
    """Score a checkpoint of any kind: of a fine-tuned run on its labelled splits, else as `evaluate_checkpoint` does."""
    store = Store(job.store)
    scoring = identify_checkpoint(store, job)
    if scoring is None:
        return evaluate_checkpoint(job, progress)
    from trainer.evaluation.classifying import score_checkpoint  # which needs scikit-learn, as language models do not

    return score_checkpoint(store, job, scoring, progress)


@explaining_lost_ranks()
def evaluate_checkpoint(job: EvaluateJob, progress: Progress) -> Evaluation:
    """Score a language model on held-out text and let it continue the prompts; an evaluation already made is reused.

    Called by every rank.

    Raises `ArtifactError` if the checkpoint is missing or damaged, `ConfigError` if it is not known what to evaluate on,
    `TokenizerError` if the shards were made with another tokenizer.
    """
    store = Store(job.store)
    wanted = identify_evaluation(store, job)
    found, shards, context, name, key, masking, document_mask = wanted
    if masking is not None:
        _check_masked(job)
    runtime = start_runtime(job.precision, job.device)
    earlier = runtime.on_first(lambda: find_evaluation(store, wanted))
    if earlier is not None:
        return earlier

    sets = [open_shards(store, shard_set) for shard_set in shards]
    tokenizer = _tokenizer(store, found, sets)
    load = partial(load_masked, found.folder) if masking else partial(load_model, found.folder, beside=found.beside)
    with sharding_group(job, runtime):
        model = place_measured(job, runtime, partial(outline_files, found.folder, None), load)
        check_positions(model.config, context, "context")
        vocab_size = model.config.get_text_config().vocab_size
        if any(shard_set.details["vocab_size"] > vocab_size for shard_set in sets):
            raise TokenizerError(
                f"the shards hold ids beyond the {vocab_size} embeddings of {job.checkpoint}; give its own shards"
            )
        held_out = [open_held_out(store, s, context, job.evaluation.max_windows, document_mask) for s in sets]
        if not any(corpus.windows for corpus in held_out):
            raise ConfigError(f"{', '.join(shards)} hold no held-out text; prepare them with data.validation_fraction above 0")
        with progress.bar("evaluate", sum(len(corpus.windows) for corpus in held_out), "window") as bar:
            batch = job.evaluation.batch
            if masking is None:
                scores = evaluate(model, held_out, context, batch, runtime, bar.advance)
            else:
                tokens = mask_tokens(load_tokenizer(store, sets[0].tokenizer), masking.mask_token)
                scores = evaluate_masked(model, held_out, context, batch, runtime, tokens, masking, bar.advance)
        samples = continue_prompts(model, tokenizer, sets[0].details["eos_id"], job.evaluation, runtime)
    hidden = masking.model_dump() if masking else None
    details = [s.details for s in sets]
    basis = text_basis(shards, details, context, job.evaluation.max_windows, job.precision, hidden, document_mask)
    run = run_at(store, found.key) if found.key else None
    result = Evaluation(
        format=FORMAT, fingerprint=name, key=key, checkpoint=job.checkpoint, shards=shards, context=context,
        scores=scores, samples=samples, measured_on=basis, model=found.key if key.startswith("evaluations/") else None,
        clean_of=runtime.on_first(lambda: clean_of(store, run)) if run else None,
    )  # fmt: skip
    if math.isfinite(scores.total.loss):
        runtime.on_first(lambda: write_sealed(store, key, result.recorded()))
    return result


def _check_masked(job: EvaluateJob) -> None:
    """Raise `ConfigError` for what a masked model is not asked for."""
    if job.evaluation.prompts:
        raise ConfigError(f"{job.checkpoint} is a masked language model, which continues no text; leave evaluation.prompts out")
    if job.sharding == "fsdp":
        raise ConfigError(f"{job.checkpoint} is a masked language model, which is not divided yet; set sharding to none")


def _tokenizer(store: Store, found: Checkpoint, sets: list[ShardSet]) -> Tokenizer:
    """The shards' tokenizer, which must also be the checkpoint's if it carries one."""
    keys = {shard_set.tokenizer for shard_set in sets}
    if len(keys) > 1:
        raise TokenizerError(f"the shards were made with different tokenizers: {', '.join(sorted(keys))}")
    (key,) = keys
    tokenizer = load_tokenizer(store, key)
    carried = found.files.get(TOKENIZER_FILE)
    if carried is not None and carried != tokenizer.sha256:
        raise TokenizerError(
            f"{found.folder} carries another tokenizer than {key}, which made {', '.join(s.key for s in sets)}; "
            "evaluate on shards made with its own"
        )
    return Tokenizer.from_str(tokenizer.json)
