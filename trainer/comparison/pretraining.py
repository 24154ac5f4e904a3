"""What is compared of pretraining runs: corpora, their tokenizer, and figures of held-out text."""

from typing import Any

from trainer.common.formats import NOTHING, count
from trainer.comparison.curation import compare_curation
from trainer.comparison.data import DIGITS, compare_corpora
from trainer.comparison.harness import measured_by_harness
from trainer.comparison.runs import ComparedKind, ComparedRun, Measured
from trainer.config.evaluation import MASKED_FIGURES, TEXT_FIGURES
from trainer.models.tokenizer import TOKENIZER_FILE
from trainer.records import kinds
from trainer.records.basis import TextBasis, facts_of
from trainer.report.pretraining import unit_of
from trainer.store.manifest import fingerprint


def _tokenizer(run: ComparedRun) -> dict[str, str]:
    key = run.config["data"]["tokenizer"]["key"]
    manifest, name = run.sources[key], {"name": key.split("/")[1]}
    if manifest is None:
        return name
    return {**name, "vocabulary": count(manifest.details["vocab_size"]), "digest": manifest.digests()[TOKENIZER_FILE][:DIGITS]}


def _base(run: ComparedRun) -> str:
    """Of a new model, there are no files that training starts from."""
    pretrained = run.config["identity"]["model"]["pretrained"]
    return fingerprint(pretrained) if pretrained else NOTHING


def _measure(evaluation: dict[str, Any]) -> Measured:
    """Figures of held-out text: of all of it, then of each corpus."""
    scores = evaluation["scores"]
    found: Measured = {}
    for corpus, each in [(None, scores["total"]), *sorted(scores["corpora"].items())]:
        for figure in dict.fromkeys((*TEXT_FIGURES, *MASKED_FIGURES)):
            if figure in each and (corpus is None or figure != "perplexity"):
                told = f"{figure.replace('_', ' ')}, {corpus or 'all'}"
                found[told] = (each[figure], _text(evaluation, figure, corpus, each))
    return {**found, **measured_by_harness(evaluation)}


def _text(evaluation: dict[str, Any], figure: str, corpus: str | None, score: dict[str, Any]) -> Any:
    """What a figure of a corpus, or of all, was measured on; of shards that do not record it, their names."""
    if measured_on := evaluation.get("measured_on"):
        basis = TextBasis(**measured_on)
        chosen = basis.held_out if corpus is None else {corpus: basis.held_out[corpus]}
        return facts_of(figure, basis.model_copy(update={"held_out": chosen}))
    own = [key for key in evaluation["shards"] if corpus in (None, key.split("/")[-1].rpartition("-")[0])]
    return [sorted(own), evaluation["context"], score["tokens"]]


PRETRAINING = ComparedKind(
    recorded=kinds.PRETRAINING,
    data="corpora",
    unit=lambda run: unit_of(run.config["job"]),
    tokenizer=_tokenizer,
    base=_base,
    compare_data=lambda store, runs: [*compare_corpora(store, runs), *compare_curation(runs)],
    measure=lambda run, evaluation: _measure(evaluation),
    metrics=lambda runs: [],
)
