"""Summaries of decisions: documents and bytes by corpus and reason; does not import what measures or reads texts."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trainer.common.display import percent, plural, size
from trainer.config.curation import NearConfig

LEAST_KEPT = 0.5
"""A warning is due if less than this share of a corpus's documents, or bytes, is kept."""


def decision_rows(details: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One row for each corpus and reason: documents, their share, and bytes."""
    rows = []
    for corpus, table in details["table"].items():
        documents = sum(line["documents"] for line in table)
        for line in table:
            share = line["documents"] / documents if documents else 0.0
            rows.append({"corpus": corpus, **line, "share": percent(share)})
    return rows


def describe_decisions(details: Mapping[str, Any]) -> str:
    """One line: the kept documents and bytes, and the options of the search for near duplicates."""
    lines = [line for table in details["table"].values() for line in table]
    kept = [line for line in lines if line["reason"] == "kept"]
    text = (
        f"{sum(line['documents'] for line in kept):,} of {plural(details['documents'], 'document')} kept, "
        f"{size(sum(line['bytes'] for line in kept))} of {size(sum(line['bytes'] for line in lines))}"
    )
    if (options := details["curation"]["near"]) is None:
        return text
    near = NearConfig.model_construct(**options)
    return (
        f"{text}; near duplicates: a similarity of at least {near.least_similarity:g}, or {near.least_contained:.0%} "
        f"contained in another document, by {near.ngram}-grams; {near.bands} bands of {near.rows} minima find "
        f"{near.found(near.least_similarity):.1%} of the pairs at {near.least_similarity:g}"
        f"{_describe_comparisons(details.get('compared'))}"
    )


def _describe_comparisons(compared: Mapping[str, int] | None) -> str:
    if compared is None:
        return ""
    text = f"; {plural(compared['pairs'], 'pair')} compared"
    if compared["incomplete"]:
        text += f", {plural(compared['incomplete'], 'document')} not with all candidates"
    return text


def decision_warnings(details: Mapping[str, Any]) -> list[str]:
    """Possible problems with decisions, one sentence each."""
    kept_out = details["kept_out"]
    return [*_warn_of_losses(details["table"]), *describe_frequent(kept_out["frequent"] if kept_out else [])]


def _warn_of_losses(tables: Mapping[str, Any]) -> Iterator[str]:
    """Warn about corpora that lose more than half of their documents or bytes."""
    for corpus, table in tables.items():
        for what in ("documents", "bytes"):
            total = sum(line[what] for line in table)
            if table[0][what] < LEAST_KEPT * total:
                largest = max(table[1:], key=lambda line: line[what])
                yield (
                    f"corpus {corpus!r}: {table[0][what] / total:.1%} of its {what} are kept; most are dropped as "
                    f"{largest['reason']!r}; `headrace curation show` lists examples"
                )
                break


def describe_frequent(lines: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Describe n-grams of evaluation sets that drop many documents."""
    for line in lines:
        yield (
            f"corpus {line['corpus']!r}: {line['documents'] / line['of']:.1%} of {plural(line['of'], 'document')} are "
            f"dropped because they share the words {line['words']!r} with {line['example']}; if that is a common "
            "phrase, such as a licence's, remove it from the evaluation file, or raise "
            "data.curation.decontaminate.ngram"
        )
