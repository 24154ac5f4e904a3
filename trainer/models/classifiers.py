"""Models for labelled data: any `transformers` classifier of texts or tokens, from a pretrained model of any kind."""

import contextlib
import logging
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Literal

import torch
from transformers import (
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    PretrainedConfig,
    PreTrainedModel,
)
from transformers import logging as transformers_logging

from trainer.common.display import some
from trainer.common.errors import ConfigError, TokenizerError
from trainer.common.process import own_rank
from trainer.config.labelled import FinetuneJob
from trainer.models.adapters import add_adapter, find_heads, merge, restore_adapter, saved_heads
from trainer.models.causal import fuse_activations, keep_fixed, load_pretrained, model_from
from trainer.models.outline import Outline, Rows, outline_folder
from trainer.models.pretrained import classifies_words, find_pretrained, load_config
from trainer.models.trial import depends_on_padding
from trainer.models.weights import is_adapter, not_loaded
from trainer.store.storage import Store

log = logging.getLogger(__name__)

Problem = Literal["single_label_classification", "multi_label_classification", "regression"]

MULTI_LABEL: Problem = "multi_label_classification"
PROBLEMS: dict[str, Problem | None] = {
    "classification": "single_label_classification", "multi-label": MULTI_LABEL, "regression": "regression",
    "tokens": None,
}  # fmt: skip
"""transformers' `problem_type` for each task; token classifiers have none."""


def kind_of(task: str) -> Any:
    """The Auto class of `transformers` for a task of labelled data."""
    return AutoModelForTokenClassification if task == "tokens" else AutoModelForSequenceClassification


def task_of(config: PretrainedConfig) -> str:
    """The task of a finished model for labelled data."""
    if classifies_words(config.architectures):
        return "tokens"
    if config.problem_type == MULTI_LABEL:
        return "multi-label"
    return "classification" if classes_of(config) else "regression"


def load_classifier(
    store: Store, job: FinetuneJob, data: dict[str, Any], checkpoint: Path | None, beside: str | None = None
) -> PreTrainedModel:
    """A float32 model with a head for the data's labels, from a checkpoint, else from the job's pretrained model.

    `data` are the details of the encoded set. A missing head is newly initialised by the seed, which is logged. An
    adapter is put into its base model: the job's, or the one in `beside`, into which it is then merged. Raises
    `ConfigError` if the model cannot be loaded, `TokenizerError` if the data's ids exceed its embeddings.
    """
    kind = kind_of(data["task"])
    if checkpoint is not None and is_adapter(checkpoint):
        start = beside or find_pretrained(store, job.model.pretrained).folder
        model = _load_adapted(
            str(checkpoint), start, classifier_config(str(checkpoint), data), job.model.attention, kind
        )
        return merge(model) if beside else model
    source = str(checkpoint or find_pretrained(store, job.model.pretrained).folder)
    config = classifier_config(source, data)
    torch.manual_seed(job.training.seed)
    model, report = _load(source, config, job.model.attention, kind, ignore_mismatched_sizes=checkpoint is None)
    made = not_loaded(report)
    if checkpoint is not None and made:
        raise ConfigError(f"checkpoint {source} lacks {', '.join(made)}")
    body = f"{model.base_model_prefix}."
    if lacking := [name for name in made if name.startswith(body) and not name.startswith(f"{body}pooler.")]:
        raise ConfigError(
            f"model {source!r} lacks {len(lacking)} weights of its own configuration, or has them with other shapes: "
            f"{some(lacking)}"
        )
    if made:
        log.info("%s has no head for this task: newly initialised weights: %s", job.model.pretrained, ", ".join(made))
    elif checkpoint is None:
        _warn_of_other_classes(job.model.pretrained, load_config(source), config)
    fuse_activations(model)
    if checkpoint is None and job.model.lora is not None:
        add_adapter(model, job.model.lora, job.training.seed, find_heads(model, made))
    return model


def _warn_of_other_classes(name: str, before: PretrainedConfig, now: PretrainedConfig) -> None:
    """Warn if a head is kept whose outputs are for other classes, or for the same ones in another order."""
    theirs, ours = (list((config.id2label or {}).values()) for config in (before, now))
    unnamed = all(re.fullmatch(r"LABEL_\d+", each) for each in theirs)
    if not unnamed and [each.casefold() for each in theirs] != [each.casefold() for each in ours]:
        log.warning(
            "the outputs of %s are for %s, and training starts with them for %s; if these are the same classes in "
            "another order, set data.classes in the model's order",
            name, ", ".join(theirs), ", ".join(ours),
        )  # fmt: skip


def outline_classifier(job: FinetuneJob, data: dict[str, Any], checkpoint: Path, rows: Rows) -> Outline | None:
    """The outline of a checkpoint with its head, for ranks that each hold some rows of each weight.

    None as for `outline_folder`, and for an adapter.
    """
    if is_adapter(checkpoint):
        return None
    config = classifier_config(str(checkpoint), data)

    def build() -> PreTrainedModel:
        return fuse_activations(model_from(config, job.model.attention, kind_of(data["task"])))

    return outline_folder(str(checkpoint), rows, build)


def load_finished(source: str, pad_id: int, beside: str | None = None) -> PreTrainedModel:
    """Load a float32 classifier with a trained head and its own classes; `pad_id` is the encoder's padding id.

    An adapter is merged into its base model in `beside`. Raises `ConfigError` if the model cannot be loaded, has no
    trained head, or has outputs that `check_outputs` refuses.
    """
    config = _attends_fully(load_config(source))
    check_outputs(source, config)
    config.get_text_config().pad_token_id = config.pad_token_id = pad_id
    kind = kind_of(task_of(config))
    if beside is not None:
        return merge(_load_adapted(source, beside, config, None, kind))
    model, report = _load(source, config, None, kind, ignore_mismatched_sizes=False)
    if lacking := not_loaded(report):
        raise ConfigError(
            f"model {source!r} is not a finished classifier: it lacks "
            f"{some(lacking)}; fine-tune it on labelled data first"
        )
    return fuse_activations(model)


def check_outputs(name: str, config: PretrainedConfig) -> None:
    """Raise `ConfigError` if a classifier's outputs cannot be told apart by class, or are several numbers."""
    names = list((config.id2label or {}).values())
    if config.problem_type == "regression" and len(names) > 1:
        raise ConfigError(
            f"model {name!r} predicts {len(names)} numbers for each text ({some(names)}); expected a model that "
            "predicts one number, or classes. If its outputs are classes, correct problem_type in its config.json"
        )
    if classes_of(config) and (repeated := [each for each, times in Counter(names).items() if times > 1]):
        raise ConfigError(
            f"model {name!r} has several classes of one name in id2label of its config.json: "
            f"{some(map(repr, repeated))}; give each class its own name"
        )


def classes_of(config: PretrainedConfig) -> list[str] | None:
    """The names of a classifier's classes; None if it predicts a number."""
    names: dict[Any, str] = config.id2label or {}
    if config.problem_type == "regression" or (len(names) == 1 and config.problem_type != MULTI_LABEL):
        return None
    return [names[number] for number in sorted(names)]


def classifier_config(source: str, data: dict[str, Any]) -> PretrainedConfig:
    """The model's configuration with the data's labels and padding; raises as `load_classifier` does."""
    config = _attends_fully(load_config(source))
    classes = data["classes"] or ["value"]
    config.problem_type = PROBLEMS[data["task"]]
    config.id2label = dict(enumerate(classes))
    config.label2id = {name: number for number, name in enumerate(classes)}
    text = config.get_text_config()
    text.pad_token_id = config.pad_token_id = data["pad_id"]
    if data["vocab_size"] > text.vocab_size:
        raise TokenizerError(
            f"the data holds ids up to {data['vocab_size'] - 1}, but {source!r} has {text.vocab_size} embeddings; "
            "its tokenizer is not that of this model"
        )
    return config


def _attends_fully(config: PretrainedConfig) -> PretrainedConfig:
    """The configuration, of BigBird with full attention instead of block sparse attention.

    transformers changes a loaded model from one to the other for good at its first batch of short texts, so what it
    computes would depend on the batches since it was loaded.
    """
    if getattr(config, "attention_type", None) == "block_sparse":
        config.attention_type = "original_full"
        if not own_rank():
            _warn_of_attention(config.model_type)
    return config


@cache
def _warn_of_attention(kind: str) -> None:
    log.warning(
        "the %r model's attention_type is block_sparse, which transformers changes to original_full for good at the "
        "first batch of short texts: it is original_full from the start, also in the published model. A run or model "
        "that is continued or measured with this message was computed with block_sparse until its first short texts",
        kind,
    )


def _load_adapted(
    source: str, beside: str, config: PretrainedConfig, attention: str | None, kind: Any
) -> PreTrainedModel:
    """A base model in `beside`, with the adapter and head in `source`."""
    model, report = _load(beside, config, attention, kind, ignore_mismatched_sizes=True)
    fuse_activations(model)
    restore_adapter(model, Path(source))
    heads = [f"{name}." for name in saved_heads(model)]
    if lacking := [name for name in not_loaded(report) if not name.startswith(tuple(heads))]:
        raise ConfigError(f"model {beside!r}, the base model of {source!r}, lacks {some(lacking)}")
    return model


def _load(
    source: str, config: PretrainedConfig, attention: str | None, kind: Any, ignore_mismatched_sizes: bool
) -> tuple[PreTrainedModel, dict[str, Any]]:
    """Load a model with transformers' loading report; warn if its outputs depend on padding."""
    with _quiet():
        model, report = load_pretrained(
            kind, source, config=config, attn_implementation=attention, ignore_mismatched_sizes=ignore_mismatched_sizes,
            output_loading_info=True,
        )  # fmt: skip
        padded = not own_rank() and depends_on_padding(model)
    if padded:
        _warn_of_padding(model.config.model_type)
    return keep_fixed(model), report


@cache
def _warn_of_padding(kind: str) -> None:
    """Warn once per process that outputs of a model family depend on padding; models are loaded several times."""
    log.warning(
        "outputs of a %r model for a text depend on padding, so on the other texts in its batch: its figures and "
        "probabilities depend on evaluation.batch (for prediction: batch). Set that to 1 to measure each text alone, "
        "or use a family that masks padding, such as bert or deberta-v2. What it learns likewise depends on "
        "training.micro_batch and the number of ranks",
        kind,
    )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Suppress transformers' messages about the new head, which `load_classifier` logs."""
    level = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(level)
