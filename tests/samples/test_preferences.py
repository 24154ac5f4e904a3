"""Pairs of answers about functions of the standard library."""

import itertools
import json
from pathlib import Path

import pytest

from samples.pairs import Function, documented_functions
from samples.preferences import main, preferences_of
from trainer.data.chat.messages import read_pair


@pytest.mark.parametrize(
    ("summary", "short"),
    [
        ("Return a list of the files in a folder.", "Return a list."),
        ("Send a reply, if there is one.", "Send a reply."),
        ("Return the node's value when asked.", None),
        ("Close the file.", None),
        ("Notify of a change.", None),
    ],
)
def test_the_chosen_answer_is_the_first_words_of_the_rejected_one(summary: str, short: str | None) -> None:
    pairs = list(preferences_of(Function("a.py:1:f", summary, "def f(a):\n    return a")))
    assert [(pair["chosen"], pair["rejected"]) for pair in pairs] == ([] if short is None else [(short, summary)])


def test_each_is_a_pair() -> None:
    pairs = [pair for each in itertools.islice(documented_functions(), 60) for pair in preferences_of(each)]
    assert len(pairs) > 20
    for pair in pairs:
        read_pair([pair["prompt"], None, pair["chosen"], pair["rejected"]], list(pair))


def test_each_split_has_pairs(tmp_path: Path) -> None:
    assert main([str(tmp_path)]) == 0
    for split in ("train", "validation", "test"):
        lines = (tmp_path / f"{split}.jsonl").read_text(encoding="utf-8").splitlines()
        assert len(lines) > 100 and {*json.loads(lines[0])} == {"prompt", "chosen", "rejected"}
