"""Report and comparison content of instruction tuning: conversations, the loss on answers, and sample answers."""

from typing import Any

from trainer.common.display import Pairs, count, number, percent, plural, short
from trainer.data.splits import TRAIN
from trainer.kinds.tuning_page import compare_tuning, data_table, describe_in_train, encoded_of, use_by_asking
from trainer.records.plans import TuningPlan
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
    size_tiles,
    speed_tiles,
)
from trainer.registry.curves import standard_curves
from trainer.registry.facts import RunFacts
from trainer.registry.sections import (
    describe_harness,
    describe_loss,
    describe_scores,
    index_scores,
    loss_tiles,
    sample_blocks,
    score_blocks,
)

UNIT = "nats a token of an answer"

RESULTS = "The finished model on answers that it was not trained on."

ANSWERS = (
    "Held-out conversations up to their last answer, and the model's answer (greedy decoding: the likeliest token each "
    "time)."
)

COLUMNS = (
    "Split", "Conversations", "Tokens", "Tokens of answers", "Longest", "Truncated", "Left out without an answer",
    "Bad records",
)  # fmt: skip
"""Column headers of the table of splits."""


def describe_chat(facts: RunFacts, plan: TuningPlan) -> ReportContent:
    """The report of a run on conversations."""
    key, details = encoded_of(facts)
    return ReportContent(
        verdict=describe_loss(facts, UNIT),
        evaluated=describe_scores(facts.evaluation, UNIT, "tokens of held-out answers"),
        tiles=_tiles(facts, plan),
        curves=standard_curves(UNIT, ["perplexity"]),
        results=[Section("Results by split", score_blocks(facts, RESULTS, UNIT)), *describe_harness(facts)],
        samples=[Section("Answers", sample_blocks(facts, ANSWERS, "No held-out conversation was answered."))],
        data=Section("Data", [Block(_data_note(facts, details), data_table(details, COLUMNS))]),
        plan=_plan(facts, plan, details),
        model=_model(facts, key, details),
        checkpoints=checkpoint_table(facts, {"loss": "loss"}, number),
        card=_card(facts, plan),
    )


def _tiles(facts: RunFacts, plan: TuningPlan) -> list[Tile]:
    windows = f"{plural(plan.windows or 0, 'window')}, {percent(plan.fill)} full"
    return [
        *loss_tiles(facts),
        *size_tiles(facts),
        Tile("Conversations", count(plan.examples), windows),
        Tile(
            "Answers",
            short(plan.answer_tokens),
            f"tokens; {plural(plan.validation_examples, 'conversation')} held out",
        ),
        *speed_tiles(facts),
    ]


def _data_note(facts: RunFacts, details: dict[str, Any]) -> str:
    data = facts.job["data"]
    origin = f"{data['path']} ({data['source']})" if data["path"] else f"{data['source']} files"
    notes = [f"Conversations of {details['name']}, from {origin}, formatted by the chat template."]
    if details["source"]["validation_cut"]:
        share = f"{data['validation_fraction']:g}"
        notes.append(f"A share of {share} is held out for validation, by a hash of the text before the first answer.")
    if unmarked := sum(each["unmarked"] for each in details["splits"].values()):
        are = "is" if unmarked == 1 else "are"
        notes.append(f"{plural(unmarked, 'answer')} that the chat template does not mark as such {are} not trained on.")
    return " ".join([*notes, *describe_in_train(details, "question")])


def _plan(facts: RunFacts, plan: TuningPlan, details: dict[str, Any]) -> Pairs:
    packed = "packed, best fit first" if facts.job["data"]["packing"] else "one conversation each"
    windows = f"{count(plan.windows)} of {count(details['context'])} tokens, {packed}"
    own = [
        ("Fill", f"{percent(plan.fill)} of the windows' tokens: {plural(plan.examples, 'conversation')}"),
        (
            "Tokens an epoch",
            f"{count(details['splits'][TRAIN]['tokens'])}, of which {count(plan.answer_tokens)} are answers'",
        ),
    ]
    return plan_pairs(facts, "window", windows, own)


def _model(facts: RunFacts, encoded: str, details: dict[str, Any]) -> Pairs:
    origin = f"{begun_with(facts)}, tuned on conversations"
    return [
        *model_pairs(facts, origin, details["vocab_size"], encoded),
        ("Ends its turn with", repr(details["end_of_turn"])),
    ]


def _card(facts: RunFacts, plan: TuningPlan) -> Card:
    job = facts.job
    how = f"tuned from {begun_with(facts)} on {plural(plan.examples, 'conversation')}"
    summary = opening_sentence(facts, "causal language model that answers", how)
    matter = {"datasets": [job["data"]["path"]]} if job["data"]["source"] == "hub" else {}
    name = job["data"]["name"]
    results = index_scores(facts, "text-generation", UNIT, name, job["data"]["path"] or name)
    return Card("text-generation", "conversational", matter, results, summary, use_by_asking(facts))


COMPARED = compare_tuning("conversations", unit=lambda run: UNIT, metrics=lambda runs: ["perplexity"])
