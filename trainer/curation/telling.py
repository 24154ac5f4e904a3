"""What was decided, told to people: documents and bytes by corpus and reason."""

from collections.abc import Mapping
from typing import Any

from trainer.common.formats import plural, size
from trainer.config.curation import NearConfig


def decision_rows(details: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A row for each corpus and reason: documents, their share, and bytes."""
    rows = []
    for corpus, table in details["table"].items():
        documents = sum(line["documents"] for line in table)
        for line in table:
            share = line["documents"] / documents if documents else 0.0
            rows.append({"corpus": corpus, **line, "share": f"{share:.2%}"})
    return rows


def describe_decisions(details: Mapping[str, Any]) -> str:
    """In one line: what stays, and what the parameters of the look for near duplicates mean."""
    lines = [line for table in details["table"].values() for line in table]
    kept = [line for line in lines if line["reason"] == "kept"]
    told = (
        f"{sum(line['documents'] for line in kept):,} of {plural(details['documents'], 'document')} stay, "
        f"{size(sum(line['bytes'] for line in kept))} of {size(sum(line['bytes'] for line in lines))}"
    )
    if (options := details["curation"]["near"]) is None:
        return told
    near = NearConfig.model_construct(**options)
    return (
        f"{told}; near duplicates: {near.ngram}-grams, {near.bands} bands of {near.rows} minima, around a similarity of "
        f"{near.threshold:.2f} (found: {near.found(0.7):.0%} of pairs at 0.7, {near.found(0.8):.0%} at 0.8, "
        f"{near.found(0.9):.0%} at 0.9)"
    )
