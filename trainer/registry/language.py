"""What the pages of runs tell alike whose model is a language model, by corpus or by split: losses in nats a token."""

from collections.abc import Sequence
from typing import Any

from trainer.common.formats import count, number, percent, perplexity, short
from trainer.common.tables import Table
from trainer.records.basis import BITS_PER_BYTE
from trainer.records.evaluations import Result, Sample, Scores
from trainer.registry.content import Block, Tile
from trainer.registry.facts import RunFacts
from trainer.registry.sections import in_order, index_entry, index_harness
from trainer.registry.summary import NOT_EVALUATED, find_comparison, tell_length, tell_steps, verdict_unmeasured

COUNTS = {
    "tokens": "Tokens", "answer_tokens": "Tokens of answers", "text_bytes": "Bytes of text",
    "answer_bytes": "Bytes of answers", "windows": "Windows",
}  # fmt: skip
"""What counts of scores are called."""


def tell_loss(facts: RunFacts, unit: str) -> str:
    """One line: what training did to the loss on held-out data."""
    compared = find_comparison(facts)
    if compared is None:
        return verdict_unmeasured(facts, unit)
    before, after = compared.before["loss"], compared.after["loss"]
    return (
        f"Validation loss {number(before)} → {number(after)} {unit} {tell_length(facts)} "
        f"(perplexity {perplexity(before)} → {perplexity(after)})."
    )


def tell_scores(result: Result | None, unit: str, things: str) -> str:
    """One line: how the finished model was measured, on so many `things`."""
    if result is None:
        return NOT_EVALUATED
    figures, tokens = result.judged.figures, _tokens(result.judged)
    bits = f", {number(figures[BITS_PER_BYTE])} bits a byte of text" if BITS_PER_BYTE in figures else ""
    told = f", {percent(figures['accuracy'])} of them told" if "accuracy" in figures else ""
    return (
        f"Finished model on {count(tokens)} {things}: {number(figures['loss'])} {unit}, perplexity "
        f"{perplexity(figures['loss'])}{bits}{told}."
    )


def loss_tiles(facts: RunFacts) -> list[Tile]:
    """The finished model's loss, and what else is known of how well it tells held-out data."""
    if facts.evaluation is None:
        tiles = [Tile("Validation loss", number(None), "not evaluated")]
    else:
        figures, tokens = facts.evaluation.judged.figures, _tokens(facts.evaluation.judged)
        tiles = [Tile("Validation loss", number(figures["loss"]), f"perplexity {perplexity(figures['loss'])}")]
        if "accuracy" in figures:
            tiles.append(Tile("Accuracy", percent(figures["accuracy"]), f"of {count(tokens)} hidden tokens"))
        if BITS_PER_BYTE in figures:
            counts = facts.evaluation.judged.counts
            text = f"of {short(counts.get('text_bytes', counts.get('answer_bytes', 0)))} held-out bytes"
            tiles.append(Tile("Bits a byte", number(figures[BITS_PER_BYTE]), f"{text}, whatever the tokenizer"))
    if compared := find_comparison(facts):
        start, end = compared.before["step"], compared.after["step"]
        change = _signed(compared.after["loss"] - compared.before["loss"])
        tiles.append(Tile("Change in training", change, f"nats, step {start} to {count(end)}"))
    return tiles


def score_blocks(facts: RunFacts, note: str, unit: str, order: Sequence[str] = ()) -> list[Block]:
    """The finished model's scores by group, which have an `order`, and the losses before and after training."""
    blocks = [Block("There is no evaluation of the finished model in the store.")]
    if facts.evaluation is not None:
        blocks = [Block(note, _score_table(facts.evaluation, unit, order))]
    if compared := find_comparison(facts):
        tokens = count(compared.after.get("tokens", compared.after.get("answer_tokens")))
        note = f"Before and after training ({tell_steps(compared)}), on {tokens} tokens that were evaluated on the way."
        blocks.append(Block(note, _change_table(compared.before, compared.after)))
    return blocks


def _score_table(result: Result, unit: str, order: Sequence[str]) -> Table:
    """Losses, perplexities, bits a byte and counts, a row for each group and one for all together."""
    found = in_order(result.groups)
    groups = {name: found[name] for name in dict.fromkeys([*order, *found]) if name in found}
    named = [name for name in COUNTS if any(name in scores.counts for scores in groups.values())]

    def row(name: str, scores: Scores) -> list[str]:
        figures, loss = scores.figures, scores.figures["loss"]
        told = [number(loss), perplexity(loss), number(figures.get(BITS_PER_BYTE))]
        return [name, *told, *(count(scores.counts.get(each)) for each in named)]

    columns = [result.by.capitalize(), f"Loss ({unit})", "Perplexity", "Bits a byte"]
    rows = [row(name, scores) for name, scores in groups.items()]
    return Table(
        [*columns, *(COUNTS[name] for name in named)], rows, row("All", result.total) if result.total else None
    )


def _change_table(before: dict[str, Any], after: dict[str, Any]) -> Table:
    """Losses before and after by corpus, if there are some, and over all."""

    def row(name: str, first: float | None, last: float, bits: list[float | None]) -> list[str]:
        change = None if first is None else last - first
        losses = [number(first), number(last), _signed(change), perplexity(first), perplexity(last)]
        return [name, *losses, *map(number, bits)]

    by_corpus = [each.get("corpora_bits_per_byte", {}) for each in (before, after)]
    rows = [
        row(name, before["corpora"].get(name), loss, [each.get(name) for each in by_corpus])
        for name, loss in after.get("corpora", {}).items()
    ]
    whole = row("All", before["loss"], after["loss"], [each.get(BITS_PER_BYTE) for each in (before, after)])
    columns = [
        "Corpus" if rows else "", "Loss before", "Loss after", "Change", "Perplexity before", "Perplexity after",
        "Bits a byte before", "Bits a byte after",
    ]  # fmt: skip
    return Table(columns, rows, whole) if rows else Table(columns, [whole])


def sample_blocks(facts: RunFacts, note: str, nothing: str) -> list[Block]:
    """What the model made of some prompts, with what stands in the data in that place, if that is known."""
    samples = facts.evaluation.samples if facts.evaluation else []
    if not samples:
        return [Block(nothing)]
    plain = tuple((each.prompt, each.continuation) for each in samples if each.expected is None)
    return [
        Block(note, samples=plain),
        *(
            Block(_expected(each), samples=((each.prompt, each.continuation),))
            for each in samples
            if each.expected is not None
        ),
    ]


def _expected(sample: Sample) -> str:
    before = "" if sample.before is None else f" Before it was tuned, the model answered: {sample.before or 'nothing'}"
    return f"The data's own answer: {sample.expected}{before}"


def index_scores(facts: RunFacts, task: str, unit: str, name: str, dataset: str) -> list[dict[str, Any]]:
    """The finished model's figures as the hub's model-index has them: of all together, or of each split."""
    result = facts.evaluation
    if result is None:
        return []
    groups = {"validation": result.total} if result.total else in_order(result.groups)
    labels = {"loss": f"loss ({unit})", BITS_PER_BYTE: "bits a byte of text"}
    entries = [
        index_entry(
            task,
            {"name": name, "type": dataset, "split": split},
            {figure: (labels.get(figure, figure), value) for figure, value in scores.figures.items()},
        )
        for split, scores in groups.items()
    ]
    return [*entries, *index_harness(facts)]


def _tokens(scores: Scores) -> int:
    return scores.counts.get("tokens", scores.counts.get("answer_tokens", 0))


def _signed(change: float | None) -> str:
    return f"{'+' if change is not None and change > 0 else ''}{number(change)}"
