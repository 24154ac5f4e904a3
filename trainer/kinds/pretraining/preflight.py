"""Checks before long work starts: inputs, store, devices, model, batches; and estimates of memory and disk space."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import combinations

from transformers import AutoModelForCausalLM as CAUSAL
from transformers import AutoModelForMaskedLM as MASKED
from transformers import PretrainedConfig

from trainer.common.display import plural
from trainer.common.errors import ConfigError, TokenizerError
from trainer.common.process import return_freed_memory
from trainer.common.progress import Progress
from trainer.common.stopping import check_stop
from trainer.config.corpora import CorpusConfig
from trainer.config.jobs import PipelineJob
from trainer.config.models import ModelConfig
from trainer.config.training import TrainingConfig
from trainer.data.raw_files import SourceFile, unpacked_bytes
from trainer.data.shards import BYTES_PER_TOKEN
from trainer.data.sources import find_sources, look_at_text
from trainer.data.step_plan import check_patience, plan_batches, plan_shards
from trainer.data.tables import PART_BYTES
from trainer.data.tokenization import STARTED, shard_manifests
from trainer.data.tokenizer_training import preview_tokenizer
from trainer.evaluation.harness_training import try_harness
from trainer.kinds.pretraining.kind import find_prepared, identify
from trainer.models.adapters import count_trained
from trainer.models.causal import (
    build_model,
    check_same_vocabulary,
    located,
    resolve_config,
    sketch_model,
    tried_masked,
)
from trainer.models.layers import refuse_skipping
from trainer.models.taken_tokenizer import END_OF_TEXT
from trainer.models.tokenizer import USUAL, TokenizerInfo, load_tokenizer, mask_tokens, vocabulary
from trainer.models.trial import tried_objective
from trainer.preflight.memory import Size, measure_activations, measure_size, require_memory
from trainer.preflight.resources import check_optimization, final_parameters, require_room, run_bytes
from trainer.records.plans import PreparedData
from trainer.records.results import CorpusPreview, CurationPreview, Preflight
from trainer.records.steps import look_for
from trainer.store.manifest import Manifest, name_in
from trainer.store.probes import check_writable
from trainer.store.storage import Store
from trainer.training.identity import check_origin, check_settings

NOTHING = dict.fromkeys(("documents", "validation_documents", "tokens", "validation_tokens"), 0)
"""Counts of a corpus without shards."""

TRIED_AT_ONCE = 150_000_000
"""Most parameters of a model that is built and tested here, in a second or two; a larger one is tested before its first
step."""


def preflight(job: PipelineJob, progress: Progress) -> Preflight:
    """Check everything that can be checked before work starts. Raises the `PipelineError` of the first problem."""
    store, training = Store(job.store), job.training
    check_writable(store)
    store.sweep()
    check_stop()
    check_origin(store, job)
    ranks = check_optimization(job)
    sources = {corpus.name: find_sources(corpus) for corpus in job.data.corpora}
    preparation = job.preparation()
    data = find_prepared(preparation)
    if data is not None:
        check_settings(store, identify(job, data))
    else:
        for corpus in job.data.corpora:
            look_at_text(corpus, [file.path for file in sources[corpus.name]])
    published = data.tokenizer if data else look_for("tokenizer", preparation)
    tokenizer = load_tokenizer(store, published.key) if published else preview_tokenizer(store, job.data)
    masked = training.masks is not None
    model = located(store, job.model)
    config = resolve_config(model, tokenizer, training.context, masked, training.masks_documents)
    if job.model.pretrained is not None and model.pretrained is not None:
        check_same_vocabulary(job.model.pretrained, model.pretrained, tokenizer)
    if ranks > 1:
        refuse_skipping(config)
    check_stop()
    try_harness(job, job.evaluation.harness, config)
    size = _measure_size(job, model, config, ranks, _mask_id(job, tokenizer))
    require_memory(job, size, ranks)
    check_stop()
    manifests = shard_manifests(store, data) if data else []
    plan = plan_shards(store, data, manifests, job, ranks) if data else None
    previews = [_preview(corpus, sources[corpus.name], manifests) for corpus in job.data.corpora]
    windows = plan.windows if plan else _guess_windows(previews, training)
    an_epoch = plan.steps_per_epoch if plan else -(-windows // training.global_batch)
    steps = plan.total_steps if plan else training.max_steps or an_epoch * (training.epochs or 1)
    curation = _preview_curation(store, job)
    known_steps = plan.total_steps if plan else training.max_steps
    final = final_parameters(job, size.trained, size.parameters)
    needs = {
        "shards": _shard_bytes(previews, tokenizer),
        "runs": run_bytes(training, size.checkpoint, known_steps, steps // an_epoch, final),
    }
    require_room(store, needs, lambda folder: _present_bytes(store, job, data, folder), size.trained, size.checkpoint)
    return Preflight(
        corpora=previews,
        vocab_size=tokenizer.vocab_size,
        parameters=size.parameters,
        trained=size.trained,
        checkpoint_bytes=size.checkpoint,
        ranks=ranks,
        plan=plan,
        about_windows=windows,
        about_steps=steps,
        about_memory_bytes=size.memory.device,
        about_host_bytes=size.memory.host,
        about_disk_bytes=sum(needs.values()),
        free_disk_bytes=store.free_bytes(),
        curation=curation.shares,
        unestimated=curation.unestimated,
        warnings=[
            *([] if plan else _warn_of_refusal(job, windows, ranks)),
            *([] if plan else _warn_of_few_documents(job, previews)),
            *_warn_without_samples(job),
            *_warn_shared(sources),
            *curation.warnings,
        ],
    )


def _measure_size(
    job: PipelineJob, model: ModelConfig, config: PretrainedConfig, ranks: int, mask_id: int | None
) -> Size:
    """The model's parameters, and the memory of training, which is measured if the model is small enough."""
    training, kind, kept = job.training, CAUSAL if mask_id is None else MASKED, None
    sketch = sketch_model(config, model.attention, model.lora, kind)
    small = count_trained(sketch).parameters <= TRIED_AT_ONCE
    if mask_id is not None and small:
        tried_masked(build_model(model, config, training.seed, kind), training.context, mask_id)
        return_freed_memory()
    elif small:
        objective = tried_objective(build_model(model, config, training.seed), model, training)
        with suppress(Exception):  # architectures fail in many ways, and only an estimate depends on this
            kept = measure_activations(objective.train(), config.get_text_config().vocab_size, training)
        del objective
        return_freed_memory()
    return measure_size(job, sketch, ranks, training.context, kept)


def _warn_of_refusal(job: PipelineJob, windows: int, ranks: int) -> Iterator[str]:
    """A warning if the job would be refused once the text is tokenized, if it had as many windows as estimated."""
    try:
        plan = plan_batches(job.training, windows, ranks)
        check_patience(job, plan.steps_per_epoch, plan.total_steps)
    except ConfigError as error:
        yield f"unless there are more steps than estimated, the job will be refused after tokenization: {error}"


def _warn_of_few_documents(job: PipelineJob, previews: Sequence[CorpusPreview]) -> Iterator[str]:
    """A warning if a setting needs held-out text, but text in few files has possibly none."""
    setting = job.asked_of_held_out_text
    if setting is None or any(each.separator or each.format not in ("text", "source") for each in job.data.corpora):
        return
    documents = sum(max(each.files, each.raw_bytes // PART_BYTES) for each in previews)
    if documents * job.data.validation_fraction < 3:  # else at least one is held out with a probability of 95 %
        yield (
            f"the corpora have about {plural(documents, 'document')} (files or parts of 4 MiB), of which possibly none "
            f"is held out at data.validation_fraction {job.data.validation_fraction:g}; then the job will be refused "
            f"after tokenization, because {setting} needs held-out text: raise the fraction, or set separator"
        )


def _warn_without_samples(job: PipelineJob) -> Iterator[str]:
    """A warning about prompts of a model that is not evaluated."""
    if job.evaluation.prompts and not job.holds_out:
        yield (
            "data.validation_fraction is 0: the model is not evaluated, and continues no evaluation.prompts; raise it "
            "to hold out some text"
        )


def _warn_shared(sources: Mapping[str, Sequence[SourceFile]]) -> Iterator[str]:
    """Warnings about files that are in two corpora."""
    paths = {corpus: {file.path for file in files} for corpus, files in sources.items()}
    for one, other in combinations(paths, 2):
        if both := paths[one] & paths[other]:
            yield f"{plural(len(both), 'file')} of corpus {one} ({min(both)}) are in {other} too and count in both"


def _mask_id(job: PipelineJob, tokenizer: TokenizerInfo) -> int | None:
    """The id of the mask token, or None if tokens are not masked; a tokenizer that is still untrained will use id 1."""
    masks = job.training.masks
    if masks is None:
        return None
    if masks.mask_share == masks.random_share == 0:
        raise ConfigError(
            "training.masking.mask_share and random_share are both 0, so the model would see every token that it "
            "predicts; set one of them above 0"
        )
    if job.data.tokenizer.mask_token == END_OF_TEXT:
        raise ConfigError(
            f"data.tokenizer.mask_token is {END_OF_TEXT}, which ends documents; set another one, such as <mask>"
        )
    if not tokenizer.json and job.data.tokenizer.mask_token in ([masks.mask_token] if masks.mask_token else USUAL):
        return 1
    if not tokenizer.json:
        raise TokenizerError(
            f"a masked model needs a mask token, but data.tokenizer.mask_token of the tokenizer to train is "
            f"{job.data.tokenizer.mask_token!r}; set it to {masks.mask_token or USUAL[1]!r}"
        )
    mask_id = mask_tokens(tokenizer, masks.mask_token).mask_id
    if mask_id == tokenizer.eos_id:
        name = next(token for token, number in vocabulary(tokenizer.json).items() if number == mask_id)
        raise TokenizerError(
            f"the tokenizer's mask token {name!r} also ends documents, so a hidden token would look like the end of "
            "one; set training.masking.mask_token or data.tokenizer.eos_token to another token"
        )
    return mask_id


def _preview_curation(store: Store, job: PipelineJob) -> CurationPreview:
    """What curation would remove from a sample, unless its decisions are already published."""
    if job.data.curation is None or look_for("curate", job.preparation()) is not None:
        return CurationPreview()
    from trainer.preflight.curation import preview_curation

    return preview_curation(store, job.data)


def _preview(corpus: CorpusConfig, files: list[SourceFile], manifests: list[Manifest]) -> CorpusPreview:
    left_out = NOTHING if manifests else None  # once data is prepared, a corpus without shards is all duplicates
    counts = next((m.details["totals"] for m in manifests if m.details["corpus"] == corpus.name), left_out)
    return CorpusPreview(
        name=corpus.name,
        files=len(files),
        raw_bytes=unpacked_bytes(corpus, files),
        documents=counts and counts["documents"] + counts["validation_documents"],
        tokens=counts and counts["tokens"] + counts["validation_tokens"],
    )


def _tokens(previews: list[CorpusPreview]) -> int:
    return sum(c.raw_bytes // BYTES_PER_TOKEN if c.tokens is None else c.tokens for c in previews)


def _guess_windows(previews: list[CorpusPreview], training: TrainingConfig) -> int:
    return max(1, _tokens(previews) // (training.stride or training.context))


def _present_bytes(store: Store, job: PipelineJob, data: PreparedData | None, folder: str) -> int:
    """Bytes already on disk from an earlier start of this job: of its shards, finished or partial, or of its run."""
    if folder == "runs":
        return store.used_bytes(identify(job, data).key) if data else 0
    if data is not None:
        return sum(ref.size for ref in data.shards)
    names = {corpus.name for corpus in job.data.corpora}
    sets = [f"shards/{name}" for name in store.names("shards") if name_in(name) in names]
    making = [key for key in sets if store.exists(f"{key}/{STARTED}")]
    return sum(map(store.used_bytes, making))


def _shard_bytes(previews: list[CorpusPreview], tokenizer: TokenizerInfo) -> int:
    return _tokens(previews) * (2 if tokenizer.max_id < 2**16 else 4)
