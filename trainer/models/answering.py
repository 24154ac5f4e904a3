"""Models that answer: causal language models that stop where a turn ends."""

from pathlib import Path
from typing import Any

from transformers import PretrainedConfig, PreTrainedModel

from trainer.common.errors import TokenizerError
from trainer.models.causal import check_positions, load_model
from trainer.models.outline import Outline, Rows, outline_files


def load_answering(
    folder: str, attention: str | None, details: dict[str, Any], beside: str | None = None
) -> PreTrainedModel:
    """A float32 causal model that generates up to the end of a turn; `details` are those of the encoded conversations.

    An adapter is merged into the model that it was trained `beside`. Raises `ConfigError` if it cannot be loaded or has
    fewer positions than a window, `TokenizerError` if ids of the data are beyond its embeddings.
    """
    return stops_at_turns(load_model(folder, attention, beside), folder, details)


def outline_answering(folder: str, attention: str | None, details: dict[str, Any], rows: Rows) -> Outline | None:
    """The same for ranks that hold some rows of each weight; None as `outline_files` says."""
    outline = outline_files(folder, attention, rows)
    if outline is not None:
        stops_at_turns(outline.model, folder, details)
    return outline


def stops_at_turns(model: PreTrainedModel, folder: str | Path, details: dict[str, Any]) -> PreTrainedModel:
    """Have a model stop at the token that ends a turn as well as at those that it stopped at before."""
    check_fits(model.config, str(folder), details["context"], details["vocab_size"])
    settings: Any = model.generation_config
    before = settings.eos_token_id
    known = [] if before is None else before if isinstance(before, list) else [before]
    ends = list(dict.fromkeys([details["end_id"], *known]))
    settings.eos_token_id = ends[0] if len(ends) == 1 else ends
    settings.pad_token_id = details["pad_id"]
    return model


def check_fits(config: PretrainedConfig, name: str, context: int, vocab_size: int) -> None:
    """Raise `ConfigError` for fewer positions than a window has, `TokenizerError` for ids beyond the embeddings."""
    check_positions(config, context, "data.context")
    embeddings = config.get_text_config().vocab_size
    if vocab_size > embeddings:
        raise TokenizerError(
            f"the tokenizer of {name!r} gives ids up to {vocab_size - 1}, but the model has {embeddings} embeddings"
        )
