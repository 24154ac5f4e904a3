"""The stages by name, for the process that a task starts; each module is imported only when its stage runs."""

import importlib
from collections.abc import Callable
from typing import Any

from pydantic import validate_call

STAGES: dict[str, tuple[str, str]] = {
    "preflight": ("trainer.preflight.pretraining", "preflight"),
    "curate": ("trainer.curation.curating", "curate"),
    "tokenizer": ("trainer.corpus.preparation", "prepare_tokenizer"),
    "corpus": ("trainer.corpus.preparation", "prepare_corpus"),
    "finetune-preflight": ("trainer.preflight.finetuning", "finetune_preflight"),
    "chat-preflight": ("trainer.preflight.chat", "chat_preflight"),
    "encode-chat": ("trainer.chat.encoding", "encode_conversations"),
    "encode": ("trainer.labelled.encoding", "encode"),
    "train": ("trainer.kinds.training", "train"),
    "evaluate": ("trainer.evaluation.measuring", "evaluate_any"),
    "evaluate-run": ("trainer.evaluation.classifying", "evaluate_run"),
    "harness": ("trainer.harness.measuring", "measure_harness"),
    "evaluate-answers": ("trainer.evaluation.answering", "evaluate_answers"),
    "predict": ("trainer.evaluation.text_predictions", "predict_texts"),
}


def stage(name: str) -> Callable[..., Any]:
    """A stage's function, taking its arguments as JSON-like values and validating them by its own annotations."""
    module, function = STAGES[name]
    plain: Callable[..., Any] = getattr(importlib.import_module(module), function)
    checked: Callable[..., Any] = validate_call(config={"arbitrary_types_allowed": True})(plain)
    return checked
