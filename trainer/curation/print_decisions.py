"""Decisions on the command line: the table of reasons, examples of one reason, and the decision on one document."""

import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from itertools import islice, pairwise, zip_longest
from typing import Any

from trainer.common.display import Table, count, plural, show, show_json, size, text_table
from trainer.common.errors import ConfigError
from trainer.config.corpora import CorpusConfig
from trainer.curation.descriptions import decision_rows, describe_decisions
from trainer.curation.showing import BINS, Shown, StoredDecisions
from trainer.store.storage import Store

WIDTH = 58
"""Characters of each column: both fit into 120 with their separator."""

ROWS = 30
CONTEXT = 6
"""Pieces shown before and after a difference."""

PIECE = re.compile(r"\S{1,20}")
"""A word, or a part of a long one, such as a sentence in a script without spaces."""

WORDS = 600
"""Pieces of each text that are compared from the first difference on: the time grows with the square of this number."""


def side_by_side(one: str, other: str) -> Iterator[str]:
    """The first differences between two texts: the document at the left, its original at the right."""
    if PIECE.findall(one) == PIECE.findall(other):
        yield "  they differ only in white space"
        yield ""
        return
    rows = list(islice(_rows(one, other), ROWS + 1))
    yield from (f"  {mine:<{WIDTH}} | {its}".rstrip() for mine, its in rows[:ROWS])
    yield from ["  … and more"] if len(rows) > ROWS else []
    yield ""


def _rows(one: str, other: str) -> Iterator[tuple[str, str]]:
    yield "this document", "the original"
    left, right = list(PIECE.finditer(one)), list(PIECE.finditer(other))
    same = next(
        (at for at, (mine, its) in enumerate(zip(left, right, strict=False)) if mine[0] != its[0]),
        min(len(left), len(right)),
    )
    start = max(0, same - CONTEXT)
    left, right = left[start : start + WORDS], right[start : start + WORDS]
    matcher = SequenceMatcher(None, [each[0] for each in left], [each[0] for each in right], autojunk=False)
    for group in matcher.get_grouped_opcodes(CONTEXT):
        (_, first, _, its_first, _), (_, _, end, _, its_end) = group[0], group[-1]
        (place, mine), (its_place, its) = _shown(one, left[first:end]), _shown(other, right[its_first:its_end])
        yield place, its_place
        yield from zip_longest(mine, its, fillvalue="")


def _shown(text: str, pieces: Sequence[re.Match[str]]) -> tuple[str, list[str]]:
    """The start of some pieces of a text, and the pieces as wrapped lines."""
    if not pieces:
        return "nothing", []
    words = " ".join(text[pieces[0].start() : pieces[-1].end()].split())
    return f"from character {pieces[0].start() + 1:,} on", textwrap.wrap(words[: WIDTH * ROWS], WIDTH)


TOLD_CHARACTERS = 400
CLUSTERS = 5
ADDRESS = re.compile(r"(.+)#([1-9]\d*)")


def print_decisions(
    url: str,
    reason: str | None,
    document: str | None,
    corpus: str | None,
    key: str | None,
    examples: int,
    as_json: bool,
) -> None:
    """Print the decisions as a table or as JSON, or the documents of a reason or with a number."""
    decided = StoredDecisions(Store(url), key)
    corpora = {each.name for each in decided.named(corpus)}
    if document is not None:
        found = list(decided.document(*_parse(document), corpus))
    else:
        found = list(decided.examples(reason, corpus, examples)) if reason is not None else []
    if not as_json and (reason is not None or document is not None):
        show("\n".join([*(line for each in found for line in _describe(each)), f"decided in {decided.key}\n"]))
        return
    alike = {each.name: _alike(decided, each) for each in decided.corpora if each.name in corpora}
    if as_json:
        shown = [{**each._asdict(), "place": str(each.place), "corpus": each.place.corpus} for each in found]
        table = {name: lines for name, lines in decided.manifest.details["table"].items() if name in corpora}
        duplicates = {"compared": decided.manifest.details["compared"], "corpora": alike}
        content = {"table": table, "duplicates": duplicates, "warnings": list(decided.warnings()), "documents": shown}
        show_json({"key": decided.key, **content})
    else:
        show("\n".join([*_table(decided, alike), ""]))


def _parse(document: str) -> tuple[str, int]:
    match = ADDRESS.fullmatch(document)
    if match is None:
        raise ConfigError(
            f"--document {document!r}: expected PATH#N, a file and the number of a document in it, counted from 1"
        )
    return match[1], int(match[2])


def _alike(decided: StoredDecisions, corpus: CorpusConfig) -> dict[str, Any]:
    """Similarities and clusters of a corpus's duplicates."""
    bins = zip(pairwise(BINS), decided.similarities(corpus), strict=True)
    return {
        "similarities": [{"least": least, "most": most, "documents": found} for (least, most), found in bins],
        "clusters": [
            {"original": str(original), "duplicates": count} for original, count in decided.clusters(corpus, CLUSTERS)
        ],
    }


def _table(decided: StoredDecisions, alike: Mapping[str, Any]) -> Iterator[str]:
    yield decided.key
    yield describe_decisions(decided.manifest.details)
    rows = [
        [row["corpus"], row["reason"], count(row["documents"]), row["share"], size(row["bytes"])]
        for row in decision_rows(decided.manifest.details)
        if row["corpus"] in alike
    ]
    table = Table(["corpus", "reason", "documents", "share", "size"], rows, words=2)
    yield textwrap.indent(text_table(table), "  ").rstrip()
    for corpus, found in alike.items():
        bins = [each for each in found["similarities"] if each["documents"]]
        if bins:
            histogram = ", ".join(f"{each['least']:g} to {each['most']:g}: {count(each['documents'])}" for each in bins)
            yield f"{corpus}: near duplicates by similarity to the kept document: {histogram}"
        for each in found["clusters"]:
            yield f"{corpus}: {plural(each['duplicates'], 'duplicate')} of {each['original']}"
    yield from (f"warning: {warning}" for warning in decided.warnings())
    yield "--reason NAME shows examples, --document PATH#N shows one document"


def _describe(each: Shown) -> Iterator[str]:
    yield f"{each.place} of {each.place.corpus}: {each.reason}"
    yield f"  {each.why}"
    if each.original is not None and each.original != each.text:
        yield from side_by_side(each.text, each.original)
        return
    text = each.text if len(each.text) <= TOLD_CHARACTERS else f"{each.text[:TOLD_CHARACTERS]}…"
    yield from (f"  | {line}" for line in text.splitlines())
    yield ""
