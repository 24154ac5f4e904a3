"""The tables of a run's report, as rows of text: the HTML report, the model card and the markdown all show these."""

import re
from typing import Any, NamedTuple

from trainer.facts import RunFacts
from trainer.formats import count, number, perplexity, size
from trainer.summary import find_comparison


class Table(NamedTuple):
    """Columns and rows of text; the first `words` columns are words, the others figures. `total` is a last, weightier row."""

    columns: list[str]
    rows: list[list[str]]
    total: list[str] | None = None
    words: int = 1


def markdown_table(table: Table) -> str:
    """A table in markdown, with figures to the right."""
    marks = [":---" if place < table.words else "---:" for place in range(len(table.columns))]
    total = [[f"**{markdown_text(cell)}**" if cell else "" for cell in table.total]] if table.total else []
    rows = [[markdown_text(cell) for cell in row] for row in [table.columns, *table.rows]]
    return "\n".join(f"| {' | '.join(row)} |" for row in [rows[0], marks, *rows[1:], *total])


def markdown_text(text: str) -> str:
    """Text on one line that markdown shows as it is."""
    escaped = re.sub(r"[<>&]", lambda mark: f"&#{ord(mark[0])};", re.sub(r"[\\`*_\[\]|~$]", r"\\\g<0>", text))
    return " ".join(escaped.split())


def results_table(facts: RunFacts) -> Table | None:
    """The finished model's scores, or None if it was not evaluated."""
    if facts.evaluation is None:
        return None

    def row(name: str, score: dict[str, Any]) -> list[str]:
        return [name, number(score["loss"]), perplexity(score["loss"]), count(score["tokens"]), count(score["windows"])]

    scores = facts.evaluation["scores"]
    order = {corpus.name: place for place, corpus in enumerate(facts.plan.corpora)}
    names = sorted(scores["corpora"], key=lambda name: (order.get(name, len(order)), name))
    rows = [row(name, scores["corpora"][name]) for name in names]
    columns = ["Corpus", "Loss (nats a token)", "Perplexity", "Tokens", "Windows"]
    return Table(columns, rows, row("All", scores["total"]))


def comparison_table(facts: RunFacts) -> Table | None:
    """Validation loss before and after, by corpus, or None if there is nothing to compare."""
    compared = find_comparison(facts)
    if compared is None:
        return None
    before, after = compared

    def row(name: str, first: float | None, last: float) -> list[str]:
        change = None if first is None else last - first
        sign = "+" if change is not None and change > 0 else ""
        return [name, number(first), number(last), f"{sign}{number(change)}", perplexity(first), perplexity(last)]

    rows = [row(name, before["corpora"].get(name), loss) for name, loss in after["corpora"].items()]
    columns = ["Corpus", "Loss before", "Loss after", "Change", "Perplexity before", "Perplexity after"]
    return Table(columns, rows, row("All", before["loss"], after["loss"]))


def data_table(facts: RunFacts) -> Table:
    """What each corpus holds, and its part in training."""
    details = {source.manifest.details["corpus"]: source.manifest.details for source in facts.shards}
    rows, sums = [], [0] * 8
    for corpus in facts.plan.corpora:
        totals, shards = details[corpus.name]["totals"], details[corpus.name]["num_shards"]
        counts = [
            corpus.documents, corpus.tokens, totals["validation_documents"], corpus.validation_tokens, corpus.windows,
            shards, totals["bad_records"], corpus.unused_tokens,
        ]  # fmt: skip
        sums = [total + value for total, value in zip(sums, counts, strict=True)]
        cells = [count(value) for value in counts]
        rows.append([corpus.name, *cells[:4], f"{number(100 * corpus.probability, 1)} %", number(corpus.passes), *cells[4:]])
    cells = [count(value) for value in sums]
    columns = [
        "Corpus", "Documents", "Tokens", "Held-out documents", "Held-out tokens", "Share of the mixture", "Passes", "Windows",
        "Shards", "Bad records", "Unused tokens",
    ]  # fmt: skip
    return Table(columns, rows, ["All", *cells[:4], "100.0 %", "", *cells[4:]])


def checkpoint_table(facts: RunFacts) -> Table:
    """The checkpoints in the store."""
    columns = ["Checkpoint", "Kept as", "Step", "Validation loss", "Size"]
    rows = [
        [each.name, ", ".join(each.reasons) or "recent", count(each.step), number(each.validation_loss), size(each.size)]
        for each in facts.checkpoints
    ]
    return Table(columns, rows, words=2)
