"""Small conversations, models that can be tuned on them, and jobs of seconds that do it."""

import itertools
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

from samples.chats import chats_of
from samples.pairs import documented_functions
from tests.support import with_changes, write_rows
from tests.tiny_models import tiny_config
from tests.trainer.small_tokenizers import byte_level_bpe
from trainer.config.chat import ChatJob
from trainer.config.files import validate_job
from trainer.models.taken_tokenizer import END_OF_TEXT

START, END = "<|im_start|>", "<|im_end|>"

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + "
    "'\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""As many published models have it."""

MARKED = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}{% if message['role'] == 'assistant' %}"
    "{% generation %}{{ message['content'] + '<|im_end|>' }}{% endgeneration %}{{ '\n' }}{% else %}"
    "{{ message['content'] + '<|im_end|>\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""The same, with marks around what the assistant says."""

LLAMA2 = (
    "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}{{ '[INST] ' + "
    "message['content'].strip() + ' [/INST]' }}{% elif message['role'] == 'system' %}{{ raise_exception('no system "
    "messages') }}{% else %}{{ ' ' + message['content'].strip() + ' ' + eos_token }}{% endif %}{% endfor %}"
)
"""One that asks for nothing, strips what is said, and ends answers with the end of documents."""

FUNCTIONS = 60

WIDTH = {"hidden_size": 32, "num_hidden_layers": 2, "max_position_embeddings": 512}


def chat_tokenizer(template: str | None = CHATML) -> PreTrainedTokenizerFast:
    """A small byte-level tokenizer with the tokens that ChatML names."""
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=byte_level_bpe(),
        eos_token=END_OF_TEXT,
        bos_token=END_OF_TEXT,
        additional_special_tokens=[START, END],
    )
    tokenizer.chat_template = template
    return tokenizer


def chat_model(folder: Path, family: str = "llama", template: str | None = CHATML, **settings: Any) -> Path:
    """A new model of some family with that tokenizer beside it."""
    tokenizer = chat_tokenizer(template)
    values = {**tiny_config(family), "vocab_size": len(tokenizer), "max_position_embeddings": 512, **settings}
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        values[name] = tokenizer.eos_token_id
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**values))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def write_chats(folder: Path) -> Path:
    """train.jsonl, validation.jsonl and test.jsonl: some 90, 12 and 12 conversations of several lengths."""
    chats = [chat for function in itertools.islice(documented_functions(), FUNCTIONS) for chat in chats_of(function)]
    files = {"train": chats[24:], "validation": chats[:12], "test": chats[12:24]}
    for name, rows in files.items():
        write_rows(folder / f"{name}.jsonl", rows)
    return folder


def chat_values(chats: Path, store: Path | str, model: Path | str, **changes: Any) -> dict[str, Any]:
    """A job of seconds as plain values, with changes."""
    values: dict[str, Any] = {
        "store": str(store),
        "name": "chats",
        "data": {
            "task": "chat", "name": "chats", "source": "jsonl", "context": 256,
            **{split: [f"{chats}/{split}.jsonl"] for split in ("train", "validation", "test")},
        },
        "model": {"pretrained": str(model)},
        "training": {"epochs": 2, "global_batch": 4, "learning_rate": 1e-3, "log_every": 1},
        "evaluation": {"samples": 2, "new_tokens": 6},
    }  # fmt: skip
    return with_changes(values, changes)


def chat_job(chats: Path, store: Path | str, model: Path | str, **changes: Any) -> ChatJob:
    """The same, validated."""
    return validate_job(ChatJob, chat_values(chats, store, model, **changes), "test")
