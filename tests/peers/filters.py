"""Verdicts of Gopher's and C4's rules on texts, by the curation stage and by datatrove's filters."""

import json
import re
import subprocess
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tests import ROOT
from trainer.config.curation import C4Rule, QualityRule, RepetitionRule, Rule
from trainer.curation.c4 import c4
from trainer.curation.measures import Batch, Test, tests_of
from trainer.curation.texts import Texts
from trainer.curation.units import BATCH_BYTES, BATCH_DOCUMENTS
from trainer.data.readers import Document
from trainer.data.shards import batches, text_bytes

RULES: dict[str, Rule] = {
    kind: schema(kind=kind)
    for kind, schema in (("gopher_quality", QualityRule), ("gopher_repetition", RepetitionRule), ("c4", C4Rule))
}
REASONS = {
    "gopher_quality": {
        "gopher_short_doc": "words too low",
        "gopher_long_doc": "words too high",
        "gopher_below_avg_threshold": "mean_word_length too low",
        "gopher_above_avg_threshold": "mean_word_length too high",
        "gopher_too_many_hashes": "hashes_per_word too high",
        "gopher_too_many_ellipsis": "ellipses_per_word too high",
        "gopher_too_many_bullets": "bullet_lines too high",
        "gopher_too_many_end_ellipsis": "ellipsis_lines too high",
        "gopher_below_alpha_threshold": "words_with_letter too low",
        "gopher_enough_stop_words": "stop_words too low",
    },
    "gopher_repetition": {
        "dup_para_frac": "duplicate_paragraphs too high",
        "dup_para_char_frac": "duplicate_paragraph_characters too high",
        "dup_line_frac": "duplicate_lines too high",
        "dup_line_char_frac": "duplicate_line_characters too high",
        **{f"top_{n}_gram": f"top_{n}_gram_characters too high" for n in (2, 3, 4)},
        **{f"duplicated_{n}_n_grams": f"duplicate_{n}_gram_characters too high" for n in range(5, 11)},
    },
    "c4": {
        "lorem_ipsum": "lorem_ipsum_lines too high",
        "curly_bracket": "curly_bracket_lines too high",
        "too_few_sentences": "sentences too low",
    },
}
"""The reasons of each of datatrove's filters, in the order of its checks, with the names used here."""


class Verdicts(NamedTuple):
    """By rule, the reason for dropping each text or the empty string: here, and in each of datatrove's ways; and
    datatrove's seconds.
    """

    ours: dict[str, list[str]]
    theirs: dict[str, dict[str, list[str]]]
    seconds: float


def judge(texts: Sequence[str], python: Path | str, folder: Path) -> Verdicts:
    """The verdicts of both on distinct texts, by rule; `python` is the interpreter of an environment with datatrove."""
    words = [words for batch in batches_of(texts) for words in words_of(batch.texts)]
    given = {"texts": texts, "words": words, "sentences": sentences_of(texts)}
    (folder / "texts.json").write_text(json.dumps(given), encoding="utf-8")
    subprocess.run([python, "-m", "tests.peers.datatrove_filters", folder], check=True, cwd=ROOT)
    theirs = json.loads((folder / "reasons.json").read_text(encoding="utf-8"))
    return Verdicts({kind: reasons_of(kind, texts) for kind in RULES}, theirs, theirs.pop("seconds"))


def reasons_of(kind: str, texts: Sequence[str]) -> list[str]:
    """Why a rule drops each text: the first reason in datatrove's order, with datatrove's name."""
    own = {test.reason.removeprefix(f"{kind}: "): test for test in tests_of(RULES[kind], kind)}
    assert sorted(own) == sorted(REASONS[kind].values())
    tests = {theirs: own[ours] for theirs, ours in REASONS[kind].items()}
    return [reason for batch in batches_of(texts) for reason in first_broken(tests, batch)]


def first_broken(tests: dict[str, Test], batch: Batch) -> Iterator[str]:
    """The name of the first of these tests that each document fails, or none."""
    rows = next(iter(tests.values())).measure(batch)
    for broken in np.array([test.breaks(rows[test.bound.field]) for test in tests.values()]).T:
        yield next((name for name, is_broken in zip(tests, broken, strict=True) if is_broken), "")


def words_of(texts: Texts) -> Iterator[list[str]]:
    """The words of each text."""
    points = "".join(texts.strings)
    first, end, starts = (getattr(texts.words, name).tolist() for name in ("first", "end", "starts"))
    for own in pairwise(starts):
        yield [points[first[at] : end[at]] for at in range(*own)]


def sentences_of(texts: Sequence[str]) -> dict[str, int]:
    """The number of sentences of each line, as datatrove passes it on: without citation marks."""
    lines = {
        re.sub(r"\[\d*]|\[edit]|\[citation needed]", "", line.strip()) for text in texts for line in text.splitlines()
    }
    listed = sorted(lines)
    found = [count for batch in batches_of(listed) for count in c4(batch.texts)["sentences"].tolist()]
    return dict(zip(listed, found, strict=True))


def batches_of(texts: Sequence[str]) -> Iterator[Batch]:
    """Batches of texts as the stage measures them."""
    documents = (Document(text.encode(), ends=True) for text in texts)
    return map(Batch, batches(documents, BATCH_BYTES, text_bytes, BATCH_DOCUMENTS))
