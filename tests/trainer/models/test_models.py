"""Models from a configuration, new and pretrained, and the loss that they are trained with."""

from pathlib import Path

import pytest
import torch
import yaml
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification, PreTrainedModel

from tests.support import NO_DROPOUT, SMALL_MODEL, cpu_runtime
from tests.tiny_models import new_model, tiny_config
from trainer.config.models import ModelConfig
from trainer.config.training import TrainingConfig
from trainer.data.dataset import Batch
from trainer.models.adapters import count_trained
from trainer.models.causal import build_model, checkpoint_activations, load_model, resolve_config, sketch_model
from trainer.models.classifiers import load_finished
from trainer.models.losses import CausalLMLoss
from trainer.models.tokenizer import TokenizerInfo
from trainer.training.runtime import Runtime
from trainer.training.schedules import make_schedule
from trainer.training.step import make_optimizer, train_step

VOCABULARY = TokenizerInfo(json="", sha256="", eos_id=0, max_id=299)


def windows_BT() -> torch.Tensor:
    return torch.randint(0, 300, (4, 32), generator=torch.Generator().manual_seed(0))


def step_once(model: PreTrainedModel, windows: torch.Tensor, runtime: Runtime) -> float:
    """One optimizer step; returns the mean loss before it."""
    model.train()
    training = TrainingConfig(max_steps=4, context=32, learning_rate=1e-2)
    objective = runtime.accelerator.prepare_model(CausalLMLoss(model))
    optimizer = runtime.accelerator.prepare_optimizer(make_optimizer(objective, training))
    batch = Batch([{"input_ids": windows}], windows.shape[0] * (windows.shape[1] - 1), windows.numel())
    return float(train_step(objective, optimizer, make_schedule(optimizer, training, 4), batch, 1.0, runtime).loss)


def test_a_new_model_is_built_from_its_configuration_and_learns_from_a_step(runtime: Runtime) -> None:
    model = new_model(dict(SMALL_MODEL))
    assert model.config.get_text_config().vocab_size == 320, "300 ids, rounded up to a multiple of 64"
    assert model.dtype == torch.float32
    assert count_trained(sketch_model(model.config)).parameters == sum(p.numel() for p in model.parameters())
    first = step_once(model, windows_BT(), runtime)
    assert first == pytest.approx(torch.log(torch.tensor(320.0)).item(), rel=0.1), "a new model guesses evenly"
    model.eval()
    with torch.no_grad():
        assert model(input_ids=windows_BT(), labels=windows_BT()).loss < first


def test_special_tokens_of_a_new_model_are_the_tokenizers() -> None:
    config = resolve_config(ModelConfig(config=dict(SMALL_MODEL)), VOCABULARY, 32)
    assert (config.bos_token_id, config.eos_token_id) == (0, 0)


def test_a_configuration_file_makes_the_same_model_as_the_same_keys_in_the_job(tmp_path: Path) -> None:
    path = tmp_path / "model.yaml"
    path.write_text(yaml.safe_dump(SMALL_MODEL))
    expected, found = new_model(dict(SMALL_MODEL)).state_dict(), new_model(str(path)).state_dict()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_a_config_json_that_transformers_wrote_is_a_configuration_file(tmp_path: Path) -> None:
    model = new_model(dict(SMALL_MODEL))
    model.save_pretrained(tmp_path)
    again = new_model(str(tmp_path / "config.json"))
    assert all(torch.equal(tensor, again.state_dict()[name]) for name, tensor in model.state_dict().items())


def test_the_seed_decides_a_new_models_weights() -> None:
    one, same, other = (new_model(dict(SMALL_MODEL), seed=seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not torch.equal(one["transformer.wte.weight"], other["transformer.wte.weight"])


def test_the_vocabulary_is_that_of_the_configuration_if_it_names_one() -> None:
    assert new_model({**SMALL_MODEL, "vocab_size": 301}).config.vocab_size == 301
    assert new_model(dict(SMALL_MODEL), pad_vocab_to=1).config.vocab_size == 300


@pytest.mark.parametrize("family", ["olmo2", "olmo3", "apertus", "opt", "gemma", "cohere"])
def test_no_token_of_a_new_model_is_its_familys_padding_token(family: str) -> None:
    pad_id = AutoConfig.for_model(family).pad_token_id
    model = new_model({**tiny_config(family), "tie_word_embeddings": False})
    assert isinstance(pad_id, int) and pad_id < 300
    assert model.config.pad_token_id is None
    embedding = model.get_input_embeddings().weight
    assert embedding[pad_id].abs().max() > 0
    CausalLMLoss(model)(windows_BT() * 0 + pad_id).backward()
    assert embedding.grad[pad_id].abs().max() > 0


def test_a_padding_token_that_no_text_holds_may_be_named() -> None:
    config = new_model({**tiny_config("modernbert-decoder"), "pad_token_id": 300}).config
    assert (config.pad_token_id, config.vocab_size) == (300, 320)


def test_a_pretrained_models_padding_token_learns_where_the_data_holds_it(tmp_path: Path) -> None:
    values = {**tiny_config("llama"), "tie_word_embeddings": False}
    config = resolve_config(ModelConfig(config=values), VOCABULARY, 32)
    config.pad_token_id = config.eos_token_id
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    assert AutoModelForCausalLM.from_pretrained(tmp_path).get_input_embeddings().padding_idx == 0
    model = load_model(tmp_path)
    CausalLMLoss(model)(torch.zeros(1, 8, dtype=torch.long)).backward()
    assert model.get_input_embeddings().weight.grad[0].abs().max() > 0
    assert model.config.pad_token_id == 0, "what padding is in batches of texts stays as it was"


def test_positions_that_an_architecture_fixes_stay_fixed_in_models_that_are_loaded(tmp_path: Path) -> None:
    sizes = {
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 8,
        "vocab_size": 300,
    }
    config = AutoConfig.for_model("roformer", **sizes, embedding_size=8, is_decoder=True)
    for kind, load in (
        (AutoModelForCausalLM, load_model),
        (AutoModelForSequenceClassification, lambda folder: load_finished(str(folder), 0)),
    ):
        new = kind.from_config(config)
        fixed = {name for name, parameter in new.named_parameters() if not parameter.requires_grad}
        new.save_pretrained(tmp_path / kind.__name__)
        state = torch.get_rng_state()
        loaded = load(tmp_path / kind.__name__)
        assert fixed == {name for name, parameter in loaded.named_parameters() if not parameter.requires_grad} != set()
        assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("shard_size", ["5GB", "20KB"])
def test_a_pretrained_folder_is_loaded_whole_or_in_several_files(shard_size: str, tmp_path: Path) -> None:
    model = new_model(dict(SMALL_MODEL), seed=5)
    model.save_pretrained(tmp_path, max_shard_size=shard_size)
    assert (tmp_path / "model.safetensors.index.json").exists() == (shard_size == "20KB")
    options = ModelConfig(pretrained=str(tmp_path))
    loaded = build_model(options, resolve_config(options, VOCABULARY, 32), seed=0)
    assert all(torch.equal(tensor, loaded.state_dict()[name]) for name, tensor in model.state_dict().items())


def test_a_pretrained_half_precision_model_is_trained_in_float32(tmp_path: Path) -> None:
    new_model(dict(SMALL_MODEL)).to(torch.bfloat16).save_pretrained(tmp_path)
    assert load_model(tmp_path).dtype == torch.float32


def test_gradient_checkpointing_changes_neither_loss_nor_gradient() -> None:
    found = []
    for checkpointing in (False, True):
        model = new_model(dict(SMALL_MODEL)).train()
        if checkpointing:
            checkpoint_activations(model)
        torch.manual_seed(3)
        loss = CausalLMLoss(model)(windows_BT())
        loss.backward()
        found.append((loss.detach(), {name: p.grad for name, p in model.named_parameters()}))
    (loss, gradient), (loss_again, gradient_again) = found
    assert torch.equal(loss, loss_again)
    for name in gradient:
        torch.testing.assert_close(gradient_again[name], gradient[name], msg=name)


def test_bf16_on_a_cpu_computes_about_the_same_loss_and_keeps_float32_weights() -> None:
    losses = []
    for precision in ("fp32", "bf16"):
        model = new_model({**SMALL_MODEL, **NO_DROPOUT})
        losses.append(step_once(model, windows_BT(), cpu_runtime(precision)))
        assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert losses[0] != losses[1], "bf16 rounds"
    assert losses[1] == pytest.approx(losses[0], rel=1e-2)
