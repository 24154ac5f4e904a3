"""What a report and a comparison say of instruction tuning: conversations, the loss of answers, and answers."""

from typing import Any

from trainer.common.formats import count, number, percent, perplexity, plural, short
from trainer.data.encoded import KIND as ENCODED
from trainer.data.splits import TRAIN, VALIDATION
from trainer.records import run_kinds
from trainer.records.basis import BITS_PER_BYTE, answers_basis, facts_of
from trainer.records.plans import ChatPlan
from trainer.registry.compare_data import DIGITS, compare_labelled
from trainer.registry.compared_runs import ComparedKind, ComparedRun, Measured, measured_by_harness
from trainer.registry.content import Block, Card, ReportContent, Section, Tile
from trainer.registry.curves import standard_curves
from trainer.registry.facts import RunFacts
from trainer.registry.sections import describe_harness, in_order, index_entry, index_harness
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

UNIT = "nats a token of an answer"

USE = """\
from transformers import AutoModelForCausalLM, AutoTokenizer

folder = "{folder}"  # the folder that holds this card
tokenizer = AutoTokenizer.from_pretrained(folder)
model = AutoModelForCausalLM.from_pretrained(folder)

messages = [{{"role": "user", "content": "What is it?"}}]
inputs = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)
output = model.generate(**inputs, max_new_tokens=100)
print(tokenizer.decode(output[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True))"""


def describe_chat(facts: RunFacts, plan: ChatPlan) -> ReportContent:
    """The account of a run on conversations."""
    (encoded,) = facts.made_from(ENCODED)
    details = {**encoded.manifest.details, "splits": in_order(encoded.manifest.details["splits"])}
    return ReportContent(
        verdict=_verdict(facts),
        evaluated=_describe_evaluation(facts),
        tiles=_tiles(facts, plan),
        curves=standard_curves(UNIT, ["perplexity"]),
        results=[Section("Results by split", _results(facts)), *describe_harness(facts)],
        samples=[Section("Answers", _samples(facts))],
        data=Section("Data", [Block(_data_note(facts, details), _data_table(details))]),
        plan=_plan(facts, plan, details),
        model=_model(facts, encoded.key, details),
        checkpoints=checkpoint_table(facts, {"loss": "loss"}, number),
        card=_card(facts, plan),
    )


def _verdict(facts: RunFacts) -> str:
    """One line: what training did to the loss of held-out answers."""
    compared = find_comparison(facts)
    if compared is None:
        return verdict_unmeasured(facts, UNIT)
    before, after = compared.before["loss"], compared.after["loss"]
    return (
        f"Validation loss {number(before)} → {number(after)} {UNIT} {tell_length(facts)} "
        f"(perplexity {perplexity(before)} → {perplexity(after)})."
    )


def _describe_evaluation(facts: RunFacts) -> str:
    """One line: how the finished model was measured."""
    if facts.evaluation is None:
        return "The finished model has not been evaluated: there is no evaluation in the store."
    scores = facts.evaluation["scores"][VALIDATION]
    tokens, bits = count(facts.evaluation["answer_tokens"][VALIDATION]), scores.get(BITS_PER_BYTE)
    told = "" if bits is None else f", {number(bits)} bits a byte"
    return (
        f"Finished model on {tokens} tokens of held-out answers: {number(scores['loss'])} {UNIT}, perplexity "
        f"{perplexity(scores['loss'])}{told}."
    )


def _tiles(facts: RunFacts, plan: ChatPlan) -> list[Tile]:
    loss = facts.evaluation["scores"][VALIDATION]["loss"] if facts.evaluation else None
    compared = find_comparison(facts)
    before = f"{number(compared.before['loss'])} before training" if compared else "nothing to compare with"
    windows = f"{count(plan.windows)} windows, {percent(plan.fill)} full"
    return [
        Tile("Validation loss", number(loss), before if loss is not None else "not evaluated"),
        *size_tiles(facts),
        Tile("Conversations", count(plan.conversations), windows),
        Tile(
            "Answers",
            short(plan.answer_tokens),
            f"tokens; {count(plan.validation_conversations)} conversations held out",
        ),
        *speed_tiles(facts),
    ]


def _results(facts: RunFacts) -> list[Block]:
    """The finished model's figures by split, and those before and after on the way."""
    blocks = [Block("There is no evaluation of the finished model in the store.")]
    if facts.evaluation is not None:
        tokens = facts.evaluation["answer_tokens"]
        rows = [
            [
                split,
                number(scores["loss"]),
                perplexity(scores["loss"]),
                number(scores.get(BITS_PER_BYTE)),
                count(tokens[split]),
            ]
            for split, scores in in_order(facts.evaluation["scores"]).items()
        ]
        columns = ["Split", f"Loss ({UNIT})", "Perplexity", "Bits a byte", "Tokens of answers"]
        blocks = [Block("The finished model on answers that it was not trained on.", Table(columns, rows))]
    if compared := find_comparison(facts):
        before, after = compared
        note = f"Before and after training (steps {count(before['step'])} and {count(after['step'])})."
        pairs = [(each["step"], each["loss"]) for each in compared]
        rows = [[f"step {count(step)}", number(loss), perplexity(loss)] for step, loss in pairs]
        blocks.append(Block(note, Table(["Validation", f"Loss ({UNIT})", "Perplexity"], rows)))
    return blocks


def _samples(facts: RunFacts) -> list[Block]:
    samples = (facts.evaluation or {}).get("samples")
    if not samples:
        return [Block("No held-out conversation was answered.")]
    note = (
        "Held-out conversations up to their last answer, and the answer that the model gives, the likeliest token each "
        "time."
    )
    return [
        Block(note),
        *(
            Block(f"The data's own answer: {each['expected']}", samples=((each["prompt"], each["continuation"]),))
            for each in samples
        ),
    ]


def _data_note(facts: RunFacts, details: dict[str, Any]) -> str:
    data, across = facts.job["data"], details["duplicates_across"]
    origin = f"{data['path']} ({data['source']})" if data["path"] else f"{data['source']} files"
    notes = [f"Conversations of {details['name']}, from {origin}, as the chat template writes them."]
    if details["source"]["validation_cut"]:
        share = f"{data['validation_fraction']:g}"
        notes.append(f"A share of {share} is held out for validation, by a hash of what comes before the first answer.")
    if unmarked := sum(each["unmarked"] for each in details["splits"].values()):
        notes.append(f"{plural(unmarked, 'answer')} that the chat template does not mark as such are not learnt.")
    if across:
        notes.append(
            f"{plural(across, 'question')} of validation are in train as well, so the validation figures flatter."
        )
    return " ".join(notes)


def _data_table(details: dict[str, Any]) -> Table:
    """What each split holds, what was cut, and what was left out."""
    figures = ("examples", "tokens", "answer_tokens", "longest", "truncated", "unanswered", "bad_records")
    columns = [
        "Split", "Conversations", "Tokens", "Tokens of answers", "Longest", "Truncated", "Left out without an answer",
        "Bad records",
    ]  # fmt: skip
    rows = [[split, *(count(each[figure]) for figure in figures)] for split, each in details["splits"].items()]
    return Table(columns, rows)


def _plan(facts: RunFacts, plan: ChatPlan, details: dict[str, Any]) -> Pairs:
    packed = "packed, best fit first" if facts.job["data"]["packing"] else "one conversation each"
    windows = f"{count(plan.windows)} of {count(details['context'])} tokens, {packed}"
    own = [
        ("Fill", f"{percent(plan.fill)} of the windows' room: {count(plan.conversations)} conversations"),
        (
            "Tokens an epoch",
            f"{count(details['splits'][TRAIN]['tokens'])}, of which {count(plan.answer_tokens)} are answers'",
        ),
    ]
    return plan_pairs(facts, "window", windows, own)


def _model(facts: RunFacts, encoded: str, details: dict[str, Any]) -> Pairs:
    origin = f"{facts.job['model']['pretrained']}, tuned on conversations"
    return [
        *model_pairs(facts, origin, details["vocab_size"], encoded),
        ("Ends its turn with", repr(details["end_of_turn"])),
    ]


def _card(facts: RunFacts, plan: ChatPlan) -> Card:
    job = facts.job
    summary = (
        f"A causal language model that answers ({facts.model_config.get('model_type', 'unknown family')}) of "
        f"{short(facts.whole_parameters)} parameters, tuned from {job['model']['pretrained']} on "
        f"{count(plan.conversations)} conversations in {plural(facts.steps, 'optimizer step')}"
    )
    matter = {"datasets": [job["data"]["path"]]} if job["data"]["source"] == "hub" else {}
    use = loaded_beside(USE.format(folder=f"{facts.key}/{FINAL}"), facts)
    return Card("text-generation", "conversational", matter, _index(facts), summary, use)


def _index(facts: RunFacts) -> list[dict[str, Any]]:
    """The finished model's figures on each split."""
    if facts.evaluation is None:
        return []
    name = facts.job["data"]["name"]
    labels = {"loss": f"loss ({UNIT})", "perplexity": "perplexity", BITS_PER_BYTE: "bits a byte of text"}
    by_split = [
        index_entry(
            "text-generation",
            {"name": name, "type": facts.job["data"]["path"] or name, "split": split},
            {figure: (labels[figure], value) for figure, value in scores.items()},
        )
        for split, scores in in_order(facts.evaluation["scores"]).items()
    ]
    return [*by_split, *index_harness(facts)]


def _tokenizer(run: ComparedRun) -> dict[str, str]:
    if run.encoded is None:
        return {}
    details = run.encoded.details
    return {"vocabulary": count(details["vocab_size"]), "digest": details["tokenizer_sha256"][:DIGITS]}


def _measure(run: ComparedRun, evaluation: dict[str, Any]) -> Measured:
    """Figures by split, and of tasks of lm-eval, each with what it was measured on."""
    own = {
        f"{figure.replace('_', ' ')}, {split}": (value, _answers(run, figure, split))
        for split, scores in in_order(evaluation["scores"]).items()
        for figure, value in scores.items()
    }
    return {**own, **measured_by_harness(evaluation)}


def _answers(run: ComparedRun, figure: str, split: str) -> Any:
    """What a figure of a split was measured on; of a set that is gone, its name."""
    if run.encoded is None:
        return run.config["data"]["key"]
    return facts_of(
        figure, answers_basis(run.encoded.details, run.job["data"], split, run.job["training"]["precision"])
    )


CHAT = ComparedKind(
    recorded=run_kinds.CHAT,
    data="conversations",
    unit=lambda run: UNIT,
    tokenizer=_tokenizer,
    tokenizer_note="A run on conversations has the tokenizer's file as its model's library saved it: digests differ by "
    "that.",
    base=lambda run: fingerprint(run.config["identity"]["model"]),
    compare_data=lambda store, runs: compare_labelled(runs),
    measure=_measure,
    metrics=lambda runs: ["perplexity"],
)
