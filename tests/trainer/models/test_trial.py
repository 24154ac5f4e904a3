"""The trial that every language model passes before it is trained, and jobs whose model does not pass it."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForSequenceClassification, PreTrainedModel

from tests.support import SMALL_MODEL, cpu_runtime, small_job
from tests.tiny_models import new_model, tiny_config
from trainer.common.errors import ConfigError
from trainer.common.progress import silent
from trainer.config.models import ModelConfig
from trainer.config.training import TrainingConfig
from trainer.kinds.pretraining.preflight import preflight
from trainer.models.classifiers import _warn_of_attention, _warn_of_padding, load_finished
from trainer.models.pretrained import READS_PADDING, outputs_depend_on_batch
from trainer.models.trial import check_causal, depends_on_padding, tried_objective
from trainer.pipelines.any_kind import train
from trainer.records.plans import PreparedData
from trainer.store.names import CHECKPOINTS

BERT = tiny_config("bert")


def refused(model: PreTrainedModel) -> str:
    with pytest.raises(ConfigError) as caught:
        check_causal(model, 32)
    return str(caught.value)


@pytest.mark.parametrize("context", [2, 3, 32, 1000])
def test_the_trial_takes_any_context_and_leaves_the_model_as_it_was(context: int) -> None:
    model = new_model({**SMALL_MODEL, "n_positions": 1024}).train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    generator = torch.get_rng_state()
    tried_objective(model, ModelConfig(config=SMALL_MODEL), TrainingConfig(max_steps=1, context=context))
    assert model.training
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), generator)


def test_one_layer_that_looks_one_token_ahead_is_found() -> None:
    model = new_model(dict(SMALL_MODEL))
    model.transformer.h[1].register_forward_hook(
        lambda module, args, output: 0.999 * output + 0.001 * output.roll(-1, dims=1)
    )
    assert "sees the tokens" in refused(model)


def noise(module: Any, args: Any, output: torch.Tensor) -> torch.Tensor:
    return output + 0.01 * torch.randn_like(output)


def not_a_number(module: Any, args: Any, output: torch.Tensor) -> torch.Tensor:
    return output * float("nan")


def failure(module: Any, args: Any) -> None:
    raise TypeError("forward() got an unexpected keyword argument 'use_cache'")


def test_a_model_that_draws_at_random_outside_of_training_is_refused_as_such() -> None:
    model = new_model(dict(SMALL_MODEL))
    model.transformer.h[0].register_forward_hook(noise)
    assert "gives different logits each time for the same tokens" in refused(model)


def test_a_model_whose_logits_are_no_numbers_is_refused() -> None:
    model = new_model(dict(SMALL_MODEL))
    model.transformer.h[0].register_forward_hook(not_a_number)
    assert "logits are not finite before training" in refused(model)


def test_a_model_that_cannot_be_run_on_token_ids_is_refused_with_its_own_message() -> None:
    model = new_model(dict(SMALL_MODEL))
    model.register_forward_pre_hook(failure)
    message = refused(model)
    assert "a 'gpt2' model cannot be run on token ids alone" in message
    assert "unexpected keyword argument 'use_cache'" in message


def test_a_family_that_counts_positions_from_its_padding_token_is_told_to_have_one() -> None:
    assert "set model.config.pad_token_id" in refused(new_model({**BERT, "model_type": "roberta", "is_decoder": True}))


@pytest.mark.parametrize("look", ["preflight", "train"])
def test_a_job_whose_model_sees_its_targets_is_refused_before_any_step(
    look: str, raw: Path, stocked: Path, data: PreparedData
) -> None:
    job = small_job(raw, stocked, model__config=BERT)
    cpu_runtime()
    start: Callable[[], Any] = (
        (lambda: preflight(job, silent())) if look == "preflight" else (lambda: train(job, silent(), data))
    )
    refusal = "'bert' model as configured sees the tokens that it should predict.*set is_decoder to true.*such as gpt2"
    with pytest.raises(ConfigError, match=refusal):
        start()
    assert not list(stocked.glob(f"runs/*/{CHECKPOINTS}/*"))


def classifier(folder: Path, family: str, **settings: Any) -> Path:
    """A folder with a tiny new classifier of a family."""
    config = AutoConfig.for_model(**{**tiny_config(family), "num_labels": 3, "pad_token_id": 1, **settings})
    torch.manual_seed(0)
    AutoModelForSequenceClassification.from_config(config).save_pretrained(folder)
    return folder


# Of a ConvBERT as small as this, the change is about as small as rounding.
FAMILIES = [*((family, True) for family in READS_PADDING if family != "convbert"), ("bert", False), ("gpt2", False)]


@pytest.mark.parametrize(("family", "depends"), FAMILIES)
def test_it_is_said_once_that_what_a_classifier_says_depends_on_padding(
    family: str, depends: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = classifier(tmp_path, family)
    _warn_of_padding.cache_clear()
    generator = torch.get_rng_state()
    with caplog.at_level(logging.WARNING):
        loaded = [load_finished(str(folder), 1) for _ in range(2)]
    assert torch.equal(torch.get_rng_state(), generator)
    assert loaded[1].training == AutoModelForSequenceClassification.from_pretrained(folder).training
    told = [record.getMessage() for record in caplog.records if "padding" in record.getMessage()]
    assert len(told) == depends == outputs_depend_on_batch(str(folder))
    for message in told:
        assert f"outputs of a {family!r} model for a text depend on padding" in message
        assert "depend on evaluation.batch" in message
        assert "Set that to 1" in message


def test_a_family_that_a_short_row_changes_for_good_is_as_it_was_after_the_trial(tmp_path: Path) -> None:
    folder = classifier(tmp_path, "big_bird", attention_type="block_sparse")
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    depends_on_padding(model)
    assert model.base_model.attention_type == "block_sparse"


@pytest.mark.parametrize("family", ["big_bird", "bigbird_pegasus"])
def test_a_classifier_that_a_short_row_would_change_for_good_attends_fully_from_the_start(
    family: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = classifier(tmp_path, family, attention_type="block_sparse")
    _warn_of_attention.cache_clear()
    model = load_finished(str(folder), 1)
    assert "attention_type is block_sparse, which transformers changes to original_full for good" in caplog.text
    assert model.config.attention_type == "original_full"
    assert {each.attention_type for each in model.modules() if hasattr(each, "attention_type")} == {"original_full"}
