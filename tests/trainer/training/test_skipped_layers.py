"""Models that skip layers at random in training: refused on several ranks, before work starts."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from tests.support import small_job
from tests.tiny_models import tiny_config
from tests.trainer.chats import chat_job, chat_model
from tests.trainer.labelled_pairs import finetune_job
from tests.trainer.preferences import preference_job
from trainer.common.errors import ConfigError
from trainer.common.progress import silent
from trainer.config.training import OptimizationConfig
from trainer.kinds.kind import kind_of
from trainer.training.parallelize import place_model
from trainer.training.runtime import Runtime
from trainer.training.workload import Workload

SKIPPING: dict[str, Any] = {"layerdrop": 0.5, "word_embed_proj_dim": 32}


@pytest.fixture
def two_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """As torchrun starts them."""
    monkeypatch.setenv("WORLD_SIZE", "2")


@pytest.mark.usefixtures("two_ranks")
def test_the_preflight_of_a_job_on_several_ranks_refuses_them(
    raw: Path, chats: Path, pairs: Path, preferences: Path, tmp_path: Path
) -> None:
    model, store = chat_model(tmp_path / "model", "opt", **SKIPPING), tmp_path / "store"
    values = {**tiny_config("opt"), "layerdrop": 0.5, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": None}
    jobs = [
        small_job(raw, store, model__config=values),
        chat_job(chats, store, model),
        finetune_job(pairs, store, chat_model(tmp_path / "bart", "bart", decoder_layerdrop=0.5)),
    ]
    for job in jobs:
        with pytest.raises(ConfigError, match=r"layerdrop is 0.5, but ranks that skip different layers wait for each"):
            kind_of(job).preflight(job, silent())
    preferring = preference_job(preferences, store, model)
    kind_of(preferring).preflight(preferring, silent())


def test_one_rank_may_skip_layers_and_several_are_refused_as_the_model_is_placed() -> None:
    config = AutoConfig.for_model(**tiny_config("opt"), layerdrop=0.5)
    model, device = AutoModelForCausalLM.from_config(config), torch.device("cpu")
    loaded = cast(Workload, SimpleNamespace(load_model=lambda folder: model, make_objective=lambda each: each))
    several = cast(Runtime, SimpleNamespace(ranks=2, rank=0, device=device))
    with pytest.raises(ConfigError, match=r"layerdrop is 0.5, but ranks that skip different layers"):
        place_model(OptimizationConfig(max_steps=1), loaded, several, None)
    prepared = SimpleNamespace(prepare_model=lambda each: each)
    alone = cast(Runtime, SimpleNamespace(ranks=1, rank=0, device=device, accelerator=prepared))
    assert place_model(OptimizationConfig(max_steps=1), loaded, alone, None).model is model
