"""What a report and a comparison say of pretraining: text by corpus, loss in nats a token."""

from collections.abc import Mapping
from typing import Any

from trainer.common.formats import NOTHING, count, number, percent, perplexity, plural, short
from trainer.config.evaluation import MASKED_FIGURES, TEXT_FIGURES
from trainer.config.training import masks_documents
from trainer.data.shards import KIND as SHARDS
from trainer.models.tokenizer import KIND as TOKENIZER
from trainer.models.tokenizer import TOKENIZER_FILE
from trainer.records import run_kinds
from trainer.records.basis import BITS_PER_BYTE, TextBasis, facts_of
from trainer.records.plans import StepPlan
from trainer.registry.compare_data import DIGITS, compare_corpora, compare_curation
from trainer.registry.compared_runs import ComparedKind, ComparedRun, Measured, measured_by_harness
from trainer.registry.content import Block, Card, ReportContent, Section, Tile
from trainer.registry.curves import standard_curves
from trainer.registry.facts import RunFacts
from trainer.registry.sections import describe_curation, describe_harness, index_entry, index_harness
from trainer.registry.summary import (
    checkpoint_table,
    find_comparison,
    loaded_beside,
    model_pairs,
    plan_pairs,
    size_tiles,
    speed_tiles,
    tell_length,
    verdict_unmeasured,
)
from trainer.registry.tables import Pairs, Table
from trainer.store.manifest import fingerprint
from trainer.store.names import FINAL

UNIT = "nats a token"

HIDDEN = "nats a hidden token"

MASKED_USE = """\
from transformers import AutoModelForMaskedLM, AutoTokenizer

folder = "{folder}"  # the folder that holds this card
tokenizer = AutoTokenizer.from_pretrained(folder)
model = AutoModelForMaskedLM.from_pretrained(folder)

inputs = tokenizer(f"Once upon a {{tokenizer.mask_token}}", return_tensors="pt")
likeliest = model(**inputs).logits[0].argmax(-1)[inputs["input_ids"][0] == tokenizer.mask_token_id]
print(tokenizer.decode(likeliest))"""

USE = """\
from transformers import AutoModelForCausalLM, AutoTokenizer

folder = "{folder}"  # the folder that holds this card
tokenizer = AutoTokenizer.from_pretrained(folder)
model = AutoModelForCausalLM.from_pretrained(folder)

inputs = tokenizer("Once", return_tensors="pt")
print(tokenizer.decode(model.generate(**inputs, max_new_tokens=40)[0]))"""


def describe_pretraining(facts: RunFacts, plan: StepPlan) -> ReportContent:
    """The account of a pretraining run."""
    return ReportContent(
        verdict=_verdict(facts),
        evaluated=_describe_evaluation(facts),
        tiles=_tiles(facts, plan),
        curves=standard_curves(_unit(facts), list(_second_figure(facts))),
        results=[Section("Results by corpus", _results(facts, plan)), *describe_harness(facts)],
        samples=[Section("Samples", [_samples(facts)])],
        data=Section("Data", [Block(_data_note(facts), _data_table(facts, plan)), *describe_curation(facts)]),
        plan=_plan(facts, plan),
        model=_model(facts),
        checkpoints=checkpoint_table(facts, {"loss": "loss", **_second_figure(facts)}, number),
        card=_card(facts, plan),
    )


def unit_of(job: Mapping[str, Any]) -> str:
    """The unit of the loss of a job's model."""
    return HIDDEN if job["training"].get("objective") == "masked" else UNIT


def _masked(facts: RunFacts) -> bool:
    return _unit(facts) == HIDDEN


def _second_figure(facts: RunFacts) -> dict[str, str]:
    """The figure that is told beside the loss, with its name for people."""
    return {"accuracy": "accuracy"} if _masked(facts) else {BITS_PER_BYTE: "bits per byte"}


def _unit(facts: RunFacts) -> str:
    return unit_of(facts.job)


def _verdict(facts: RunFacts) -> str:
    """One line: what training did to the loss on held-out text."""
    compared = find_comparison(facts)
    if compared is None:
        return verdict_unmeasured(facts, _unit(facts))
    before, after = compared.before["loss"], compared.after["loss"]
    return (
        f"Validation loss {number(before)} → {number(after)} {_unit(facts)} {tell_length(facts)} "
        f"(perplexity {perplexity(before)} → {perplexity(after)})."
    )


def _describe_evaluation(facts: RunFacts) -> str:
    """One line: how the finished model was measured."""
    if facts.evaluation is None:
        return "The finished model has not been evaluated: there is no evaluation in the store."
    total = facts.evaluation["scores"]["total"]
    bits = f", {number(total[BITS_PER_BYTE])} bits a byte of text" if BITS_PER_BYTE in total else ""
    bits += f", {percent(total['accuracy'])} of them told" if "accuracy" in total else ""
    return (
        f"Finished model on {count(total['tokens'])} held-out tokens: {number(total['loss'])} {_unit(facts)}, "
        f"perplexity {perplexity(total['loss'])}{bits}."
    )


def _tiles(facts: RunFacts, plan: StepPlan) -> list[Tile]:
    corpora = plural(len(plan.corpora), "corpus", "corpora")
    tokens = sum(corpus.tokens for corpus in plan.corpora)
    return [
        *_loss_tiles(facts),
        *size_tiles(facts),
        Tile("Tokens trained on", short(facts.steps * plan.tokens_per_step), f"{count(plan.tokens_per_step)} a step"),
        Tile("Training data", f"{short(tokens)}", f"tokens in {corpora}"),
        *speed_tiles(facts),
    ]


def _loss_tiles(facts: RunFacts) -> list[Tile]:
    if facts.evaluation is not None:
        total = facts.evaluation["scores"]["total"]
        tiles = [Tile("Validation loss", number(total["loss"]), f"perplexity {perplexity(total['loss'])}")]
        if "accuracy" in total:
            tiles.append(Tile("Accuracy", percent(total["accuracy"]), f"of {count(total['tokens'])} hidden tokens"))
        if BITS_PER_BYTE in total:
            text = f"of {short(total['text_bytes'])} held-out bytes, whatever the tokenizer"
            tiles.append(Tile("Bits a byte", number(total[BITS_PER_BYTE]), text))
    else:
        tiles = [Tile("Validation loss", number(None), "not evaluated")]
    if compared := find_comparison(facts):
        start, end = compared.before["step"], compared.after["step"]
        tiles.append(
            Tile(
                "Change in training",
                _signed(compared.after["loss"] - compared.before["loss"]),
                f"nats, step {start} to {count(end)}",
            )
        )
    return tiles


def _signed(change: float | None) -> str:
    return f"{'+' if change is not None and change > 0 else ''}{number(change)}"


def _results(facts: RunFacts, plan: StepPlan) -> list[Block]:
    """The finished model's scores, and the loss before and after by corpus, if there is anything to compare."""
    blocks = [Block("There is no evaluation of the finished model in the store.")]
    if facts.evaluation is not None:
        windows = f"The finished model on held-out text, in windows of {count(facts.evaluation['context'])} tokens."
        blocks = [Block(windows, _results_table(facts.evaluation["scores"], plan))]
    if compared := find_comparison(facts):
        before, after = compared
        steps = f"(steps {count(before['step'])} and {count(after['step'])})"
        tokens = f"on the same {count(after['tokens'])} held-out tokens that were evaluated on the way"
        blocks.append(Block(f"Before and after training {steps}, {tokens}.", _comparison_table(before, after)))
    return blocks


def _results_table(scores: dict[str, Any], plan: StepPlan) -> Table:
    def row(name: str, score: dict[str, Any]) -> list[str]:
        figures = [number(score["loss"]), perplexity(score["loss"]), number(score.get(BITS_PER_BYTE))]
        return [name, *figures, count(score["tokens"]), count(score.get("text_bytes")), count(score["windows"])]

    order = {corpus.name: place for place, corpus in enumerate(plan.corpora)}
    names = sorted(scores["corpora"], key=lambda name: (order.get(name, len(order)), name))
    rows = [row(name, scores["corpora"][name]) for name in names]
    columns = ["Corpus", "Loss (nats a token)", "Perplexity", "Bits a byte", "Tokens", "Bytes of text", "Windows"]
    return Table(columns, rows, row("All", scores["total"]))


def _comparison_table(before: dict[str, Any], after: dict[str, Any]) -> Table:
    def row(name: str, first: float | None, last: float, bits: list[float | None]) -> list[str]:
        change = None if first is None else last - first
        return [
            name,
            number(first),
            number(last),
            _signed(change),
            perplexity(first),
            perplexity(last),
            *map(number, bits),
        ]

    by_corpus = [each.get("corpora_bits_per_byte", {}) for each in (before, after)]
    rows = [
        row(name, before["corpora"].get(name), loss, [each.get(name) for each in by_corpus])
        for name, loss in after["corpora"].items()
    ]
    columns = ["Corpus", "Loss before", "Loss after", "Change", "Perplexity before", "Perplexity after"]
    bits = [each.get(BITS_PER_BYTE) for each in (before, after)]
    return Table(
        [*columns, "Bits a byte before", "Bits a byte after"], rows, row("All", before["loss"], after["loss"], bits)
    )


def _samples(facts: RunFacts) -> Block:
    samples = (facts.evaluation or {}).get("samples")
    if not samples:
        return Block("No prompts were continued.")
    texts = tuple((sample["prompt"], sample["continuation"]) for sample in samples)
    return Block("Each prompt in bold, then the model's continuation.", samples=texts)


def _data_note(facts: RunFacts) -> str:
    fraction = facts.job["data"]["validation_fraction"]
    return (
        f"Corpora are mixed with p ~ tokens ^ {facts.job['training']['alpha']:g}; a share of {fraction:g} of the "
        "documents is held out by a hash of their content, so that exact copies of a document are on one side."
    )


def _data_table(facts: RunFacts, plan: StepPlan) -> Table:
    """What each corpus holds, and its part in training."""
    details = {source.manifest.details["corpus"]: source.manifest.details for source in facts.made_from(SHARDS)}
    rows, sums = [], [0] * 8
    for corpus in plan.corpora:
        totals, shards = details[corpus.name]["totals"], details[corpus.name]["num_shards"]
        counts = [
            corpus.documents, corpus.tokens, totals["validation_documents"], corpus.validation_tokens, corpus.windows,
            shards, totals["bad_records"], corpus.unused_tokens,
        ]  # fmt: skip
        sums = [total + value for total, value in zip(sums, counts, strict=True)]
        cells = [count(value) for value in counts]
        rows.append(
            [corpus.name, *cells[:4], f"{number(100 * corpus.probability, 1)} %", number(corpus.passes), *cells[4:]]
        )
    cells = [count(value) for value in sums]
    columns = [
        "Corpus", "Documents", "Tokens", "Held-out documents", "Held-out tokens", "Share of the mixture", "Passes",
        "Windows",
        "Shards", "Bad records", "Unused tokens",
    ]  # fmt: skip
    return Table(columns, rows, ["All", *cells[:4], "100.0 %", "", *cells[4:]])


def _plan(facts: RunFacts, plan: StepPlan) -> Pairs:
    training = facts.job["training"]
    how = f"one every {plural(training['stride'] or training['context'], 'token')}"
    if plan.fill is not None:
        how = f"packed with whole documents, {percent(plan.fill)} full"
    apart = (
        "; attention within documents"
        if masks_documents(training.get("packing"), training.get("document_mask"))
        else ""
    )
    windows = f"{count(plan.windows)} of {count(training['context'])} tokens, {how}{apart}"
    tokens = [
        ("Tokens a step", count(plan.tokens_per_step)),
        ("Tokens trained on", count(facts.steps * plan.tokens_per_step)),
    ]
    return plan_pairs(facts, "window", windows, tokens)


def _model(facts: RunFacts) -> Pairs:
    (tokenizer,) = facts.made_from(TOKENIZER)
    start = facts.job["model"]["pretrained"]
    origin = f"pretrained {start}" if start else f"seed {facts.job['training']['seed']}"
    return model_pairs(facts, origin, tokenizer.manifest.details["vocab_size"], tokenizer.key)


def _card(facts: RunFacts, plan: StepPlan) -> Card:
    start = facts.job["model"]["pretrained"]
    summary = (
        f"A {'masked' if _masked(facts) else 'causal'} language model "
        f"({facts.model_config.get('model_type', 'unknown family')}) of "
        f"{short(facts.whole_parameters)} parameters, trained {f'further from {start}' if start else 'from scratch'} "
        f"on {count(facts.steps * plan.tokens_per_step)} tokens in {plural(facts.steps, 'optimizer step')}"
    )
    return Card(
        _task(facts),
        "masked-lm" if _masked(facts) else "causal-lm",
        {},
        _index(facts, plan),
        summary,
        loaded_beside((MASKED_USE if _masked(facts) else USE).format(folder=f"{facts.key}/{FINAL}"), facts),
    )


def _task(facts: RunFacts) -> str:
    return "fill-mask" if _masked(facts) else "text-generation"


def _index(facts: RunFacts, plan: StepPlan) -> list[dict[str, Any]]:
    """The finished model's figures on all held-out text."""
    if facts.evaluation is None:
        return []
    corpora = ", ".join(corpus.name for corpus in plan.corpora)
    dataset = {"name": f"held-out text of {corpora}", "type": corpora, "split": "validation"}
    total = facts.evaluation["scores"]["total"]
    figures = {"loss": (f"loss ({_unit(facts)})", total["loss"]), "perplexity": ("perplexity", total["perplexity"])}
    if BITS_PER_BYTE in total:
        figures[BITS_PER_BYTE] = ("bits a byte of text", total[BITS_PER_BYTE])
    if "accuracy" in total:
        figures["accuracy"] = ("accuracy", total["accuracy"])
    return [index_entry(_task(facts), dataset, figures), *index_harness(facts)]


def _tokenizer(run: ComparedRun) -> dict[str, str]:
    key = run.config["data"]["tokenizer"]["key"]
    manifest, name = run.sources[key], {"name": key.split("/")[1]}
    if manifest is None:
        return name
    return {
        **name,
        "vocabulary": count(manifest.details["vocab_size"]),
        "digest": manifest.digests()[TOKENIZER_FILE][:DIGITS],
    }


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
    recorded=run_kinds.PRETRAINING,
    data="corpora",
    unit=lambda run: unit_of(run.config["job"]),
    tokenizer=_tokenizer,
    base=_base,
    compare_data=lambda store, runs: [*compare_corpora(store, runs), *compare_curation(runs)],
    measure=lambda run, evaluation: _measure(evaluation),
    metrics=lambda runs: [],
)
