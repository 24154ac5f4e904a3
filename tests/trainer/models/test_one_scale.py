"""Models that scale the positions of a whole forward pass by its longest text: refused where lengths differ."""

from pathlib import Path
from typing import Any

import pytest

from tests.tiny_models import tiny_config
from tests.trainer.chats import chat_job, chat_model
from tests.trainer.labelled_pairs import finetune_job
from tests.trainer.preferences import preference_job
from trainer.common.errors import ConfigError
from trainer.common.progress import silent
from trainer.config.models import ModelConfig
from trainer.kinds.kind import kind_of
from trainer.models.causal import resolve_config
from trainer.models.tokenizer import TokenizerInfo
from trainer.pipelines.any_kind import train

VOCABULARY = TokenizerInfo(json="", sha256="", eos_id=0, max_id=63)
SHORT, CONTEXT = 8, 64


def long_rope(original: int) -> dict[str, Any]:
    """Settings of a model that was trained on texts of `original` tokens first."""
    rope = {
        "rope_type": "longrope",
        "rope_theta": 1e4,
        "factor": 8.0,
        "short_factor": [1.0] * 4,
        "long_factor": [8.0] * 4,
    }
    own = {"original_max_position_embeddings": original}
    return {"rope_parameters": {**rope, **own}, **own, "num_attention_heads": 4}


def test_only_documents_that_are_kept_apart_are_refused_in_windows_of_one_length() -> None:
    values = {**tiny_config("phi3"), "vocab_size": 65, "max_position_embeddings": 128, **long_rope(SHORT)}
    options = ModelConfig(config={**values, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 64})
    resolve_config(options, VOCABULARY, CONTEXT)
    resolve_config(options, VOCABULARY, SHORT, apart=True)
    with pytest.raises(ConfigError, match=r"training.context is 64, but .* set training.context to at most 8 or train"):
        resolve_config(options, VOCABULARY, CONTEXT, apart=True)


def test_conversations_and_preferences_are_refused_beyond_the_first_scale(
    chats: Path, preferences: Path, tmp_path: Path
) -> None:
    model = chat_model(tmp_path / "model", "phi3", **long_rope(CONTEXT))
    for job in (chat_job(chats, tmp_path / "s", model), preference_job(preferences, tmp_path / "s", model)):
        with pytest.raises(
            ConfigError, match=r"data.context is 256, but .* LongRoPE .* set data.context to at most 64"
        ):
            kind_of(job).preflight(job, silent())
        with pytest.raises(ConfigError, match=r"data.context is 256, but"):
            train(job, silent())


def test_labelled_texts_are_refused_if_one_is_longer_than_the_first_scale(pairs: Path, tmp_path: Path) -> None:
    model = chat_model(tmp_path / "model", "phi3", **long_rope(SHORT))
    job = finetune_job(pairs, tmp_path / "s", model)
    for start in (kind_of(job).preflight, train):
        with pytest.raises(ConfigError, match=r"data.max_length is .*, but .* set data.max_length to at most 8"):
            start(job, silent())
    fitting = finetune_job(pairs, tmp_path / "s", model, data__max_length=SHORT)
    kind_of(fitting).preflight(fitting, silent())
