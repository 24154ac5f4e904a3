"""What a report says of curated text: what stayed of each corpus, what went and why, and what was kept out."""

from collections.abc import Iterator

from trainer.common.formats import count, size
from trainer.curation.telling import decision_rows, describe_decisions
from trainer.data.decisions import KIND as DECISIONS
from trainer.data.decisions import decisions_behind
from trainer.data.shards import KIND as SHARDS
from trainer.report.account import Block
from trainer.report.tables import Table
from trainer.runs.facts import RunFacts


def describe_curation(facts: RunFacts) -> list[Block]:
    """The decisions about a run's text, if there are any, and the evaluation sets that it is clean of."""
    decisions = facts.made_from(DECISIONS)
    if not decisions:
        return []
    told = [f"{source.key}: {describe_decisions(source.manifest.details)}." for source in decisions]
    note = f"Which documents stay was decided once, with a reason for each that goes. {' '.join(told)}"
    columns = ["Corpus", "Reason", "Documents", "Share", "Bytes"]
    blocks = [Block(note, Table(columns, list(_rows(facts)), words=2))]
    return [*blocks, Block(facts.clean_of.describe())] if facts.clean_of else blocks


def _rows(facts: RunFacts) -> Iterator[list[str]]:
    """Of each corpus what stays, and goes for each reason."""
    details = {source.key: source.manifest.details for source in facts.made_from(DECISIONS)}
    for shards in facts.made_from(SHARDS):
        for key in decisions_behind(shards.manifest):
            for row in decision_rows(details[key]):
                if row["corpus"] == shards.manifest.details["corpus"]:
                    yield [row["corpus"], row["reason"], count(row["documents"]), row["share"], size(row["bytes"])]
