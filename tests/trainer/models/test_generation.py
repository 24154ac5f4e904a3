"""What models say is what is asked for, whatever settings of generation they bring along."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from trainer.models.causal import load_model
from trainer.models.generation import continue_tokens

NEW = 12


@pytest.fixture
def opinionated(llama: Path, tmp_path: Path) -> Any:
    """Makes a model with these settings of generation."""

    def make(**settings: Any) -> PreTrainedModel:
        for path in llama.iterdir():
            (tmp_path / path.name).write_bytes(path.read_bytes())
        (tmp_path / "generation_config.json").write_text(json.dumps(settings))
        return load_model(tmp_path)

    return make


def likeliest(model: PreTrainedModel, ids: list[int], number: int) -> list[int]:
    """The likeliest tokens that follow, one after another."""
    read = list(ids)
    with torch.no_grad():
        for _ in range(number):
            read.append(int(model(input_ids=torch.tensor([read])).logits[0, -1].argmax()))
    return read[len(ids) :]


@pytest.mark.parametrize(
    "settings",
    [
        {"repetition_penalty": 8.0}, {"no_repeat_ngram_size": 1}, {"num_beams": 4}, {"min_new_tokens": 9},
        {"do_sample": True, "temperature": 9.0, "top_p": 0.4}, {"max_new_tokens": 3},
        {"num_return_sequences": 2, "num_beams": 2},
    ],
)  # fmt: skip
def test_the_likeliest_is_taken_whatever_a_model_brings_along(opinionated: Any, settings: dict[str, Any]) -> None:
    model = opinionated(**settings)
    expected = likeliest(model, [5, 6, 7], NEW)
    assert continue_tokens(model, [5, 6, 7], NEW) == expected
    assert model.generation_config.to_diff_dict().items() >= settings.items(), "it keeps them"
    assert continue_tokens(model, [5, 6, 7], NEW, expected[3]) == expected[: expected.index(expected[3]) + 1]


def test_the_tokens_that_a_model_stops_at_are_its_own(opinionated: Any) -> None:
    plain = likeliest(opinionated(), [5, 6, 7], NEW)
    model = opinionated(eos_token_id=[plain[4], plain[5]], pad_token_id=0)
    first = min(plain.index(plain[4]), plain.index(plain[5]))
    assert continue_tokens(model, [5, 6, 7], NEW) == plain[: first + 1]


def test_chance_chooses_by_the_seed_and_the_temperature_alone(opinionated: Any) -> None:
    drawn = [
        continue_tokens(opinionated(**settings), [5, 6, 7], NEW, temperature=4.0, seed=seed)
        for settings in ({}, {"repetition_penalty": 8.0, "top_k": 1, "top_p": 0.1})
        for seed in (0, 1)
    ]
    assert drawn[:2] == drawn[2:] and drawn[0] != drawn[1]
