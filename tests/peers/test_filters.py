"""Gopher's and C4's rules against datatrove's filters, per document of real text, with the causes of differences."""

from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.peers.datatrove_filters import DEFINITIONS, OWN, WORDS
from tests.peers.filters import REASONS, RULES, Verdicts, judge
from tests.real_texts import real_texts
from tests.trainer.curating import curated_job, decide, reasons_of, write_documents

OF_EACH = 400
ALL = {kind: {"", *reasons} for kind, reasons in REASONS.items()}
GRAMS = {reason for reason in REASONS["gopher_repetition"] if reason.endswith(("_gram", "_grams"))}
LINES = {reason for reason in REASONS["gopher_repetition"] if reason.startswith(("dup_line", "dup_para"))}


class Difference(NamedTuple):
    """Documents dropped for one of these reasons here, and for one of those by datatrove; an empty reason is none."""

    here: set[str]
    there: set[str]
    most: float
    """The largest share of all documents."""


OF_WORDS = {
    # Words are what stands between white space here, as in the paper. There `foo(1),` is `foo(1`, `)` and `,`, so that
    # most code, tables and manual pages have too few words with a letter.
    "gopher_quality": [
        Difference({""}, {"gopher_below_alpha_threshold"}, 0.6),
        Difference({""}, ALL["gopher_quality"] - {"gopher_below_alpha_threshold"}, 0.005),
        Difference(ALL["gopher_quality"], {""}, 0.01),
    ],
    # And n-grams of these, which are of more and shorter words there, come back more often. Man pages differ most.
    "gopher_repetition": [
        Difference({""}, {reason for reason in GRAMS if reason.startswith("dup")}, 0.12),
        Difference({""}, {reason for reason in GRAMS if reason.startswith("top")}, 0.12),
        Difference(GRAMS, {""}, 0.03),
        # Lines that end with \\r or \\f, and empty ones: see below. There the words of such a document may not be
        # repeated; and empty lines that end with \\r\\n are the same line, many times.
        Difference(LINES, {""}, 0.005),
        Difference({""}, LINES, 0.002),
    ],
    # `errno.ECHILD` is of two sentences there, and of one here; `Facebook, Inc. and others` is of two here, and of one
    # there.
    "c4": [Difference({"too_few_sentences"}, {""}, 0.01), Difference({""}, {"too_few_sentences"}, 0.01)],
}
"""Differences caused by the splitting into words and sentences, which datatrove does with spaCy."""

OF_LINES = {
    # Characters that are neither letter, number nor mark are symbols here; there those of a list.
    "gopher_quality": [Difference(ALL["gopher_quality"], ALL["gopher_quality"], 0.005)],
    # Lines end here where Python ends them, there with \\n alone. Empty ones at a text's ends count there, too, so that
    # manual pages of one pattern that lie at the bound would all differ: the texts have none.
    "gopher_repetition": [
        Difference(LINES, ALL["gopher_repetition"], 0.01),
        Difference(ALL["gopher_repetition"], LINES, 0.01),
    ],
    # There the first line that breaks a rule gives the reason, here the first rule that a line breaks.
    "c4": [Difference({"lorem_ipsum"}, {"curly_bracket"}, 0.01)],
}
"""Remaining differences with the same words: of verdicts, and of their reasons."""


@pytest.fixture(scope="module")
def texts() -> list[str]:
    """Several thousand texts of several sorts."""
    found = {text.strip("\n"): origin for origin, text in real_texts(OF_EACH) if text.strip("\n")}
    assert len(found) > 2000 and len(set(found.values())) > 3, Counter(found.values())
    return list(found)


@pytest.fixture(scope="module")
def verdicts(texts: list[str], peers_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Verdicts:
    return judge(texts, peers_python, tmp_path_factory.mktemp("judged"))


def unnamed(ours: list[str], theirs: list[str], differences: list[Difference]) -> dict[object, int]:
    """Counts of differing pairs of reasons that are not listed or more frequent than listed."""
    counts: Counter[object] = Counter()
    for pair, documents in Counter(zip(ours, theirs, strict=True)).items():
        if pair[0] != pair[1]:
            named = (
                number for number, each in enumerate(differences) if pair[0] in each.here and pair[1] in each.there
            )
            counts[next(named, pair)] += documents
    return {
        each: count
        for each, count in counts.items()
        if not isinstance(each, int) or count > differences[each].most * len(ours)
    }


@pytest.mark.parametrize("kind", RULES)
def test_by_the_same_definitions_every_verdict_is_datatroves(kind: str, verdicts: Verdicts) -> None:
    ours, theirs = verdicts.ours[kind], verdicts.theirs[DEFINITIONS][kind]
    assert [bool(reason) for reason in ours] == [bool(reason) for reason in theirs]
    assert 0.02 < sum(map(bool, ours)) / len(ours) < 0.98
    if kind != "c4":
        assert ours == theirs


@pytest.mark.parametrize("kind", RULES)
def test_given_words_only_lines_and_symbols_make_a_difference(kind: str, verdicts: Verdicts) -> None:
    ours, theirs = verdicts.ours[kind], verdicts.theirs[WORDS][kind]
    assert not (found := unnamed(ours, theirs, OF_LINES[kind])), found
    other = sum(bool(own) != bool(others) for own, others in zip(ours, theirs, strict=True))
    assert other <= 0.002 * len(ours), other


@pytest.mark.parametrize("kind", RULES)
def test_with_its_own_words_it_differs_where_that_is_named_and_no_more_often(kind: str, verdicts: Verdicts) -> None:
    ours = verdicts.ours[kind]
    theirs = [own if own and other else other for own, other in zip(ours, verdicts.theirs[OWN][kind], strict=True)]
    assert not (found := unnamed(ours, theirs, OF_WORDS[kind])), found


def test_the_stage_drops_what_the_rules_drop(texts: list[str], verdicts: Verdicts, tmp_path: Path) -> None:
    raw = write_documents(tmp_path / "raw.jsonl", texts)
    for kind in RULES:
        curation = {"exact": None, "filters": [{"kind": kind}]}
        job = curated_job(
            tmp_path / "store", {"real": str(raw)}, curation, shards={"num_shards": 1, "piece_bytes": 2**26}
        )
        dropped = [reason != "kept" for reason in reasons_of(job, decide(job).key, "real")]
        assert dropped == [bool(reason) for reason in verdicts.ours[kind]]
