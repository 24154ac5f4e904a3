"""What the documentation promises: a model that was pretrained here learns a task of real text."""

import json
import math
from pathlib import Path

import pytest

from samples.pairs import main as write_pairs
from tests.processes import start_module

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(1200)]


def test_a_model_pretrained_on_functions_learns_which_documentation_belongs_to_which(tmp_path: Path) -> None:
    store, pairs = tmp_path / "store", tmp_path / "pairs"
    assert write_pairs([str(pairs)]) == 0
    corpus = f"data.corpora.0.paths=[{pairs}/functions.jsonl]"
    for number, (config, *overrides) in enumerate([
        ("configs/functions.yaml", corpus),
        ("configs/finetune.yaml",
        *(f"data.{split}=[{pairs}/{split}.jsonl]" for split in ("train", "validation", "test"))),
    ]):  # fmt: skip
        said = tmp_path / str(number)
        ended = start_module(said, "trainer", config, f"store={store}", *overrides, count=2).wait(900)
        assert ended.status == 0, ended.stderr
    (evaluation,) = [json.loads(path.read_text()) for path in store.glob("runs/pairs-*/eval.json")]
    accuracy = evaluation["groups"]["validation"]["figures"]["accuracy"]
    examples = sum(entry["support"] for entry in evaluation["classification"]["validation"]["classes"])
    assert examples > 800
    assert accuracy > 0.5 + 5 * math.sqrt(0.25 / examples), "five standard deviations above chance"
