"""Report and comparison content of pretraining: text by corpus, loss in nats per token."""

from collections.abc import Mapping
from typing import Any

from trainer.common.display import Pairs, Table, count, number, percent, plural, short
from trainer.config.training import masks_documents
from trainer.data.shards import KIND as SHARDS
from trainer.models.tokenizer import KIND as TOKENIZER
from trainer.models.tokenizer import TOKENIZER_FILE
from trainer.records.basis import BITS_PER_BYTE
from trainer.records.evaluations import best_by
from trainer.records.plans import StepPlan
from trainer.registry.compared_runs import DIGITS, ComparedKind, ComparedRun, compare_corpora, compare_curation
from trainer.registry.content import (
    Block,
    Card,
    ReportContent,
    Section,
    Tile,
    begun_with,
    checkpoint_table,
    model_pairs,
    opening_sentence,
    plan_pairs,
    program,
    size_tiles,
    speed_tiles,
)
from trainer.registry.curves import standard_curves
from trainer.registry.facts import RunFacts
from trainer.registry.sections import (
    describe_curation,
    describe_harness,
    describe_loss,
    describe_scores,
    index_scores,
    loss_tiles,
    sample_blocks,
    score_blocks,
)

UNIT = "nats a token"

HIDDEN = "nats a hidden token"

MASKED_USE = """\
inputs = tokenizer(f"Once upon a {tokenizer.mask_token}", return_tensors="pt")
likeliest = model(**inputs).logits[0].argmax(-1)[inputs["input_ids"][0] == tokenizer.mask_token_id]
print(tokenizer.decode(likeliest))"""

USE = """\
inputs = tokenizer("Once", return_tensors="pt")
print(tokenizer.decode(model.generate(**inputs, max_new_tokens={new_tokens})[0]))"""

NEW_TOKENS = 40
"""Most tokens that the example program generates; the model may have few positions."""


def describe_pretraining(facts: RunFacts, plan: StepPlan) -> ReportContent:
    """The report of a pretraining run."""
    unit, corpora = unit_of(facts.job), [corpus.name for corpus in plan.corpora]
    how = f"The finished model on held-out text, in windows of {count(facts.job['training']['context'])} tokens."
    return ReportContent(
        verdict=describe_loss(facts, unit),
        evaluated=describe_scores(facts.evaluation, unit, "hidden tokens" if unit == HIDDEN else "held-out tokens"),
        tiles=_tiles(facts, plan),
        curves=standard_curves(unit, list(_second_figure(facts))),
        results=[
            Section("Results by corpus", score_blocks(facts, how, unit, corpora)),
            *describe_harness(facts),
        ],
        samples=[
            Section(
                "Samples",
                sample_blocks(
                    facts, "Each prompt in bold, then the model's continuation.", "No prompts were continued."
                ),
            )
        ],
        data=Section("Data", [Block(_data_note(facts), _data_table(facts, plan)), *describe_curation(facts)]),
        plan=_plan(facts, plan),
        model=_model(facts),
        checkpoints=checkpoint_table(facts, {"loss": "loss", **_second_figure(facts)}, number),
        card=_card(facts, plan),
    )


def unit_of(job: Mapping[str, Any]) -> str:
    """The unit of the loss of a job's model."""
    return HIDDEN if job["training"].get("objective") == "masked" else UNIT


def _second_figure(facts: RunFacts) -> dict[str, str]:
    """The figure shown beside the loss, with its label."""
    return {"accuracy": "accuracy"} if unit_of(facts.job) == HIDDEN else {BITS_PER_BYTE: "bits per byte"}


def _tiles(facts: RunFacts, plan: StepPlan) -> list[Tile]:
    corpora = plural(len(plan.corpora), "corpus", "corpora")
    tokens = sum(corpus.tokens for corpus in plan.corpora)
    return [
        *loss_tiles(facts),
        *size_tiles(facts),
        Tile("Tokens trained on", short(facts.steps * plan.tokens_per_step), f"{count(plan.tokens_per_step)} a step"),
        Tile("Training data", f"{short(tokens)}", f"tokens in {corpora}"),
        *speed_tiles(facts),
    ]


def _data_note(facts: RunFacts) -> str:
    fraction = facts.job["data"]["validation_fraction"]
    held_out = (
        f"a share of {fraction:g} of the documents is held out by a hash of their content, so that exact copies of a "
        "document are in the same split"
    )
    mixed = f"Corpora are mixed with p ~ tokens ^ {facts.job['training']['alpha']:g}"
    made = f" Passes are those up to step {count(facts.made_at)}, of the final model."
    passes = "" if facts.made_at == facts.steps else made
    return f"{mixed}; {held_out if fraction else 'no text is held out'}.{passes}"


def _data_table(facts: RunFacts, plan: StepPlan) -> Table:
    """What each corpus holds, and its share in training; of the planned passes, those up to the final model."""
    done = facts.made_at / plan.total_steps
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
            [
                corpus.name,
                *cells[:4],
                percent(corpus.probability),
                number(corpus.passes * done),
                *cells[4:],
            ]
        )
    cells = [count(value) for value in sums]
    columns = [
        "Corpus", "Documents", "Tokens", "Held-out documents", "Held-out tokens", "Share of the mixture", "Passes",
        "Windows",
        "Shards", "Bad records", "Unused tokens",
    ]  # fmt: skip
    return Table(columns, rows, ["All", *cells[:4], percent(1.0), "", *cells[4:]])


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
    figure = best_by(facts.job)
    best = [] if figure == "loss" else [("Best checkpoint", f"by {figure}")]
    return plan_pairs(facts, "window", windows, [*tokens, *best])


def _model(facts: RunFacts) -> Pairs:
    (tokenizer,) = facts.made_from(TOKENIZER)
    start = begun_with(facts)
    origin = f"pretrained {start}" if start else f"seed {facts.job['training']['seed']}"
    return model_pairs(facts, origin, tokenizer.manifest.details["vocab_size"], tokenizer.key)


def _card(facts: RunFacts, plan: StepPlan) -> Card:
    start = begun_with(facts)
    corpora = ", ".join(corpus.name for corpus in plan.corpora)
    how = f"trained {f'further from {start}' if start else 'from scratch'}"
    tokens = f"on {count(facts.made_at * plan.tokens_per_step)} tokens"
    if unit_of(facts.job) == HIDDEN:
        objective, task, use = "masked", "fill-mask", program(facts, "AutoModelForMaskedLM", MASKED_USE)
    else:
        generate = USE.format(new_tokens=min(NEW_TOKENS, facts.job["training"]["context"] // 2))
        objective, task, use = "causal", "text-generation", program(facts, "AutoModelForCausalLM", generate)
    return Card(
        task,
        f"{objective}-lm",
        {},
        index_scores(facts, task, unit_of(facts.job), f"held-out text of {corpora}", corpora),
        opening_sentence(facts, f"{objective} language model", f"{how} {tokens}"),
        use,
    )


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


COMPARED = ComparedKind(
    data="corpora",
    unit=lambda run: unit_of(run.job),
    tokenizer=_tokenizer,
    compare_data=lambda store, runs: [*compare_corpora(store, runs), *compare_curation(runs)],
    metrics=lambda runs: [],
)
