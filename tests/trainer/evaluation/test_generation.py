"""Continuations of prompts: the same for the same seed, and for prompts of any length."""

import copy
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedModel

from tests.support import cpu_runtime
from trainer.config.evaluation import EvaluationConfig
from trainer.kinds.pretraining.evaluate import continue_prompts
from trainer.models.generation import continue_tokens

EOS, POSITIONS = 256, 16


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    """One token a byte, so that a prompt's length is its number of tokens."""
    vocabulary = {character: number for number, character in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    made = Tokenizer(models.BPE(vocab={**vocabulary, "<|endoftext|>": EOS}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    return made


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    torch.manual_seed(0)
    config = GPT2Config(
        n_layer=2, n_embd=32, n_head=2, n_positions=POSITIONS, vocab_size=257, bos_token_id=EOS, eos_token_id=EOS
    )
    return GPT2LMHeadModel(config)


def write(model: PreTrainedModel, tokenizer: Tokenizer, *prompts: str, **options: Any) -> list[str]:
    settings = EvaluationConfig(prompts=list(prompts), **{"new_tokens": 8, **options})
    samples = continue_prompts(model, tokenizer, EOS, settings, cpu_runtime())
    assert [sample.prompt for sample in samples] == list(prompts)
    return [sample.continuation for sample in samples]


def test_the_same_seed_writes_the_same_and_another_writes_something_else(
    model: PreTrainedModel, tokenizer: Tokenizer
) -> None:
    first, again, other = (write(model, tokenizer, "abc", "abd", seed=seed) for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_each_prompt_has_its_own_draws(model: PreTrainedModel, tokenizer: Tokenizer) -> None:
    unsure = copy.deepcopy(model)
    with torch.no_grad():
        unsure.get_input_embeddings().weight.zero_()  # every token is as likely, whatever the prompt
    prompts = [f"{letter}b" for letter in "acdefghijk"]
    assert len(set(write(unsure, tokenizer, *prompts, temperature=1.0))) == len(prompts)


def test_a_continuation_depends_on_its_own_prompt_only(model: PreTrainedModel, tokenizer: Tokenizer) -> None:
    assert write(model, tokenizer, "x", "abc")[1] == write(model, tokenizer, "abc")[0]


def test_every_token_may_be_drawn(model: PreTrainedModel) -> None:
    drawn = {continue_tokens(model, [97], 1, temperature=1.0, seed=seed)[0] for seed in range(200)}
    assert len(drawn) > 100, "a new model is sure of nothing"
    assert len({continue_tokens(model, [97], 1, temperature=1.0, seed=seed, top_k=2)[0] for seed in range(20)}) == 2


def test_an_empty_prompt_begins_a_document(model: PreTrainedModel, tokenizer: Tokenizer) -> None:
    (continuation,) = write(model, tokenizer, "", temperature=0.0, new_tokens=1)
    with torch.no_grad():
        logits_V = model(input_ids=torch.tensor([[EOS]])).logits[0, -1]
    assert continuation == tokenizer.decode([int(logits_V.argmax())])


@pytest.mark.parametrize("new_tokens", [1, 8, 15, 16, 100])
@pytest.mark.parametrize("length", [1, 15, 16, 17, 200])
def test_a_prompt_of_any_length_is_continued_from_its_end_within_the_models_positions(
    model: PreTrainedModel, tokenizer: Tokenizer, length: int, new_tokens: int
) -> None:
    prompt = ("abcdefgh" * 30)[:length]
    (continuation,) = write(model, tokenizer, prompt, new_tokens=new_tokens, temperature=0.0)
    kept = prompt[-max(1, POSITIONS - new_tokens) :]
    (expected,) = write(model, tokenizer, kept, new_tokens=new_tokens, temperature=0.0)
    assert continuation == expected
    assert continuation


def test_a_prompt_whose_beginning_is_not_read_is_warned_of(
    model: PreTrainedModel, tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture
) -> None:
    write(model, tokenizer, "abcdefgh", new_tokens=8)
    assert not caplog.text
    write(model, tokenizer, "abcdefgh", new_tokens=14)
    told = "only the end of a prompt of 8 tokens is continued, 2 tokens: the model has 16 positions"
    assert told in caplog.text
