"""What would become of a job's tokenizer and shards, and why."""

from collections.abc import Mapping, Sequence
from typing import Any

from trainer.common.formats import count, plural, size
from trainer.common.progress import silent
from trainer.config.corpora import CorpusConfig, DataConfig
from trainer.config.jobs import PipelineJob
from trainer.corpus.decisions import KIND as DECISIONS
from trainer.corpus.decisions import corpora_left
from trainer.corpus.preparation import SOURCES, STARTED, PreparedData, corpus_recipe, locate_corpus
from trainer.corpus.shard_building import ShardWork
from trainer.corpus.shard_reuse import find_finished
from trainer.corpus.shards import KIND as SHARDS
from trainer.corpus.suspects import is_suspect
from trainer.corpus.tokenizer import KIND as TOKENIZER
from trainer.corpus.tokenizer import TokenizerInfo, load_tokenizer
from trainer.corpus.tokenizer_making import name_tokenizer, tokenizer_recipe
from trainer.curation.plan import make_plan
from trainer.foresight.decisions import explain_decisions
from trainer.foresight.foreseen import Foreseen
from trainer.foresight.likeness import Likeness, compare_options, compare_pieces, explain_likeness, find_similar, look
from trainer.records.origins import by_file
from trainer.records.seals import read_listed
from trainer.store.manifest import ArtifactRef, Manifest, read_manifest
from trainer.store.storage import Store


def foresee_data(store: Store, job: PipelineJob) -> tuple[list[Foreseen], PreparedData | None]:
    """The stages before training, and references to what they give, as far as its names are known."""
    decisions = [foresee_decisions(store, job.data)] if job.data.curation is not None else []
    tokenizer = foresee_tokenizer(store, job.data)
    before = [*decisions, tokenizer]
    decided = next((each.key for each in decisions if each.verdict == "reused"), None)
    corpora = [foresee_corpus(store, job.data, each, before, job.verify) for each in corpora_left(store, job.data, decided)]
    known = all(stage.verdict == "reused" for stage in before)
    data = PreparedData(tokenizer=_refer(tokenizer), shards=[_refer(each) for each in corpora]) if known else None
    return [*before, *corpora], data


def _refer(stage: Foreseen) -> ArtifactRef:
    assert stage.key is not None
    return ArtifactRef(key=stage.key, fingerprint=stage.key[-16:], size=0, reused=stage.verdict == "reused")


def foresee_tokenizer(store: Store, data: DataConfig) -> Foreseen:
    """Whether the tokenizer is there."""
    _, key = name_tokenizer(data)
    manifest, problems = look(store, key, TOKENIZER)
    if manifest is not None:
        return Foreseen("the tokenizer", "reused", key, tuple(_trained_on_all(manifest, data)), created=manifest.created)
    similar = find_similar(store, key, TOKENIZER, lambda other: _compare_tokenizers(other, tokenizer_recipe(data)))
    return Foreseen("the tokenizer", "made", key, tuple(problems or explain_likeness(similar, lambda other: [])))


def _trained_on_all(tokenizer: Manifest, data: DataConfig) -> list[str]:
    """That a tokenizer is older than the curation of the text that it was trained on."""
    if data.curation is None or data.tokenizer.path is not None or "decisions" in tokenizer.details:
        return []
    return ["it was trained on all documents, before curation; another data.tokenizer.name trains one on those that stay"]


def foresee_decisions(store: Store, data: DataConfig) -> Foreseen:
    """Whether it is decided which documents stay."""
    plan = make_plan(store, data)
    manifest, problems = look(store, plan.key, DECISIONS)
    if manifest is not None:
        return Foreseen("the decisions", "reused", plan.key, created=manifest.created)
    reasons = problems or explain_decisions(store, data, plan)
    return Foreseen("the decisions", "made", plan.key, tuple(reasons), f"about {size(plan.raw_bytes)} of raw text")


def foresee_corpus(store: Store, data: DataConfig, corpus: CorpusConfig, before: Sequence[Foreseen], verify: bool) -> Foreseen:
    """Whether a corpus's shards are there, or how many of them are; with `verify`, all of them are read.

    `before` are the decisions, if there are to be any, and the tokenizer.
    """
    stage = f"shards of {corpus.name}"
    for each in before:
        if each.verdict != "reused" or each.key is None:
            return Foreseen(stage, "depends", reasons=(each.later,))
    *decisions, tokenizer = (each.key for each in before)
    assert tokenizer is not None
    info = load_tokenizer(store, tokenizer)
    key, work = locate_corpus(store, data, corpus, info, silent(), decisions[0] if decisions else None)
    read_all = verify or is_suspect(store, key)
    manifest, problems = look(store, key, SHARDS, content=read_all)
    if manifest is not None:
        bad = manifest.details["totals"]["bad_records"]
        if bad > corpus.max_bad_records:
            return Foreseen(stage, "refused", key, (f"{plural(bad, 'bad record')}, at most {corpus.max_bad_records} allowed",))
        return Foreseen(stage, "reused", key, created=manifest.created)
    found = find_finished(store, key, corpus.name, work, content=read_all)
    begun = store.exists(f"{key}/{STARTED}") or any(folder == key for folder, _ in found.values())
    if not problems and begun:
        problems = ["it was begun and not finished"]
    reasons = problems or _explain(store, data, corpus, tokenizer, info, key, work)
    missing = [shard for shard in work if shard.number not in found]
    amount = f" from {size(sum(shard.raw_bytes for shard in missing))} of raw text" if missing else ""
    told = f"{count(len(found))} of {plural(len(work), 'shard')} taken over, {count(len(missing))} to be built{amount}"
    return Foreseen(stage, "made", key, tuple(reasons), told)


def _compare_tokenizers(old: Manifest, recipe: Mapping[str, Any]) -> list[str]:
    known = old.details.get("recipe")
    return compare_options(_placed(known), _placed(recipe)) if known else []


def _placed(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """A tokenizer's recipe, each part under its place in a configuration."""
    options = {key: value for key, value in recipe.items() if key != "corpora"}
    return {"data.tokenizer": options, "data.corpora": recipe.get("corpora")}


def _explain(
    store: Store,
    data: DataConfig,
    corpus: CorpusConfig,
    tokenizer_key: str,
    info: TokenizerInfo,
    key: str,
    work: list[ShardWork],
) -> list[str]:
    """What differs from the corpus's most similar set: options, tokenizer, files."""
    recipe, pieces = corpus_recipe(data, corpus), by_file(vars(piece) for shard in work for piece in shard.pieces)
    wanted = _options(corpus.name, recipe, len(work), data.validation_fraction, info.eos_id)

    def compare(other: Manifest) -> list[str]:
        told = other.details
        known = _options(corpus.name, told.get("recipe"), told["num_shards"], told["validation_fraction"], told["eos_id"])
        same = told["tokenizer_sha256"] == info.sha256
        return compare_options(known, wanted) + ([] if same else [_tell_tokenizers(store, told["tokenizer"], tokenizer_key)])

    def files(other: Likeness) -> list[str]:
        before = by_file(read_listed(store, f"{other.key}/{SOURCES}", other.manifest.digests().get(SOURCES)) or [])
        recut = other.manifest.details.get("recipe", {}).get("piece_bytes") != recipe["piece_bytes"]
        return compare_pieces(before, pieces, recut)

    return explain_likeness(find_similar(store, key, SHARDS, compare), files)


def _options(name: str, recipe: dict[str, Any] | None, shards: int, fraction: float, eos_id: int) -> dict[str, Any]:
    """A set's options by their places in a configuration; without a recipe, those that every manifest tells."""
    options: dict[str, Any] = {
        "data.shards.num_shards": shards, "data.validation_fraction": fraction, "the end token's id": eos_id,
    }  # fmt: skip
    if recipe is None:
        return options
    rest = {f"data.corpora.{name}": recipe["corpus"], "data.shards.piece_bytes": recipe["piece_bytes"]}
    return {**options, **rest, "the format of shards": recipe["format"]}


def _tell_tokenizers(store: Store, old: str, new: str) -> str:
    """That another tokenizer is used now, and what it has that is different."""
    before, now = read_manifest(store, old, TOKENIZER), read_manifest(store, new, TOKENIZER)
    reasons = _compare_tokenizers(before, now.details.get("recipe", {})) if before and now else []
    if old == new:
        reasons = ["it was made anew"]
    why = f" ({'; '.join(reasons)})" if reasons else ""
    return f"the tokenizer: {old} -> {new}{why}"
