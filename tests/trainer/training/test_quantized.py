"""Quantised bases beside an adapter: trained as transformers and `peft` do it, and published as plain weights."""

import json
import shutil
from math import log
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, BitNetConfig, BitNetForCausalLM, BitsAndBytesConfig

from tests.depth import once
from tests.support import cpu_runtime, curve, final_bytes, forget_after, held_out_losses, small_job
from tests.trainer.adapted_runs import LORA, TRAINED, train_adapter, write_base
from tests.trainer.chats import chat_job
from tests.trainer.preferences import preference_job
from trainer.common.errors import ConfigError
from trainer.common.progress import silent
from trainer.config.runs import RunJob
from trainer.jobs import train
from trainer.kinds.kind import identify_run
from trainer.models import quantized
from trainer.models.causal import load_model
from trainer.models.quantized import refuse_quantized
from trainer.pipelines.any_kind import train as train_on
from trainer.preflight.memory import estimate_memory
from trainer.records.plans import PreparedData

STEPS = 6
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
LLAMA = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 32,
}  # fmt: skip

# peft asks transformers by a name that this one will not have for ever.
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")


@pytest.fixture(scope="module")
def base(prepared: tuple[Path, PreparedData], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that is adapted; not to be written to."""
    return write_base(tmp_path_factory.mktemp("base") / "model", *prepared, **LLAMA)


def job_of(raw: Path, store: Path, base: Path, form: str | None, **changes: Any) -> Any:
    model = {"pretrained": str(base), "lora": LORA, **({"quantize": form} if form else {})}
    return small_job(raw, store, **{"model": model, **TRAINED, "training__max_steps": STEPS, **changes})


def adapt(raw: Path, store: Path, data: PreparedData, base: Path, form: str, **changes: Any) -> str:
    cpu_runtime()
    return train_on(job_of(raw, store, base, form, **changes), silent(), data).key


@pytest.mark.parametrize("form", ["nf4", pytest.param("int8", marks=pytest.mark.deep)])
def test_it_is_trained_as_transformers_and_peft_do_it_in_a_plain_loop(
    raw: Path, stocked: Path, data: PreparedData, base: Path, form: str
) -> None:
    damped = {"training__epsilon": 1e-3}  # else Adam takes a whole step by a gradient that is nothing but rounding
    run = adapt(raw, stocked, data, base, form, **damped)
    job = job_of(raw, stocked, base, form, **damped)
    how = {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"} if form == "nf4" else {"load_in_8bit": True}
    plain = AutoModelForCausalLM.from_pretrained(
        base, quantization_config=BitsAndBytesConfig(**how), dtype=torch.float32, device_map="cpu"
    )
    torch.manual_seed(job.training.seed)
    adapted = get_peft_model(plain, LoraConfig(r=4, lora_alpha=8, target_modules=TARGETS)).train()
    for layer in adapted.modules():
        if hasattr(layer, "support_avx512bf16_for_cpu"):
            layer.support_avx512bf16_for_cpu = False
    losses = train_adapter(adapted, job, data)
    assert [loss for _, loss, _, _ in curve(stocked)] == pytest.approx(losses, abs=1e-5)
    details = json.loads((stocked / run / "final" / "manifest.json").read_text())["details"]["trained"]
    whole = sum(each.numel() for each in AutoModelForCausalLM.from_pretrained(base).parameters())
    assert details["parameters"] == whole + details["trained"]
    published, started = (load_file(folder / "model.safetensors") for folder in (stocked / run / "final", base))
    assert published.keys() == started.keys() and all(each.dtype == torch.float32 for each in published.values())
    ids = torch.randint(5, 300, (2, 24))
    final = AutoModelForCausalLM.from_pretrained(stocked / run / "final").eval()
    with torch.no_grad():
        expected, found = (model.eval()(input_ids=ids).logits for model in (adapted, final))
    apart = float((expected - found).square().mean().sqrt() / expected.std())
    assert apart < (1e-5 if form == "nf4" else 0.02), (
        "int8 rounds what goes into a layer too, which plain weights do not"
    )


@pytest.mark.parametrize(
    ("form", "precision"), once(("nf4", "fp32"), ("nf4", "bf16"), ("int8", "fp32"), ("int8", "bf16"))
)
def test_training_goes_on_with_the_same_bytes_whatever_was_measured_on_the_way(
    raw: Path, stocked: Path, data: PreparedData, base: Path, tmp_path: Path, form: str, precision: str
) -> None:
    changes = {"training__save_every": 2, "training__keep_last": 9, "training__precision": precision}
    bare = Path(shutil.copytree(stocked, tmp_path / "bare"))
    run = adapt(raw, stocked, data, base, form, training__evaluate_every=1, **changes)
    other = Path(shutil.copytree(stocked, tmp_path / "other"))
    forget_after(other / run, 2)
    assert adapt(raw, other, data, base, form, training__evaluate_every=1, **changes) == run
    assert final_bytes(other) == final_bytes(stocked) and curve(other) == curve(stocked)
    adapt(raw, bare, data, base, form, **changes)
    assert final_bytes(bare) == final_bytes(stocked)


@pytest.mark.parametrize("sharding", ["none", "fsdp"])
def test_a_base_with_quantised_weights_is_not_trained_without_an_adapter(
    raw: Path, stocked: Path, data: PreparedData, base: Path, tmp_path: Path, sharding: str
) -> None:
    whole = BitsAndBytesConfig(load_in_8bit=True)
    loaded = AutoModelForCausalLM.from_pretrained(base, quantization_config=whole, device_map="cpu")
    stored = Path(shutil.copytree(base, tmp_path / "stored"))
    loaded.save_pretrained(stored)
    cpu_runtime()
    changes = {**TRAINED, "training__max_steps": STEPS, "training__sharding": sharding}
    job = small_job(raw, stocked, **changes, model={"pretrained": str(stored)})
    with pytest.raises(ConfigError, match=r"has quantised weights \(bitsandbytes\), which cannot be trained; use the "):
        train_on(job, silent(), data)


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
def test_weights_that_training_changes_may_be_rounded_where_they_are_used(tmp_path: Path) -> None:
    settings = {"quant_method": "bitnet", "linear_class": "autobitlinear", "quantization_mode": "online"}
    sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
    BitNetForCausalLM(BitNetConfig(**sizes, **heads, bos_token_id=1, eos_token_id=2)).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "quantization_config": settings}))
    model = load_model(tmp_path)
    assert all(weight.requires_grad and weight.dtype is torch.float32 for weight in model.parameters())
    refuse_quantized(model)


def test_the_form_names_the_run(raw: Path, base: Path, data: PreparedData) -> None:
    names = {identify_run(job_of(raw, Path("anywhere"), base, form), data).key for form in (None, "nf4", "int8")}
    assert len(names) == 3


@pytest.mark.deep
@pytest.mark.parametrize("kind", ["chat", "preference"])
@pytest.mark.parametrize("publish", ["merged", "adapter"])
def test_conversations_and_preferences_are_learnt_beside_one(
    kind: str, publish: str, llama: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    make: Any = chat_job if kind == "chat" else preference_job
    data: Path = request.getfixturevalue("chats" if kind == "chat" else "preferences")
    changes = {"model__lora": {**LORA, "publish": publish}, "model__quantize": "nf4", "training__epochs": 1}
    job: RunJob = make(data, tmp_path / "store", llama, **changes)
    cpu_runtime()
    train(job, silent())
    first, *_, last = (loss for _, loss in held_out_losses(tmp_path / "store"))
    assert last < first
    if kind == "preference":
        assert first == pytest.approx(log(2), abs=1e-4), "the model begins as its own reference"


def test_a_model_without_such_layers_is_refused(
    raw: Path, stocked: Path, prepared: tuple[Path, PreparedData], data: PreparedData, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="'gpt2' model has no linear layers that bitsandbytes can quantise"):
        adapt(raw, stocked, data, write_base(tmp_path / "base", *prepared), "nf4")


def test_that_it_is_not_installed_is_told_before_anything_is_done(
    raw: Path, stocked: Path, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quantized, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"but bitsandbytes is not installed: pip install 'headrace\[quant"):
        train(job_of(raw, stocked, base, "nf4"), silent())
    assert not (stocked / "runs").exists()


def test_a_gpu_is_counted_on_to_hold_it_in_fewer_bytes(raw: Path, base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.preflight.memory.count_gpus", lambda device: 1)
    job = job_of(raw, Path("anywhere"), base, "nf4")
    kept: Any = type("Kept", (), {"per_pair": 0.0, "per_token": 0.0, "fixed": 0.0})()
    config = AutoModelForCausalLM.from_pretrained(base).config
    sizes = [
        estimate_memory(job.training, 32, config, 1, 10**9, kept, 0, 0, None, 0, form).device for form in (None, "nf4")
    ]
    assert sizes == [4 * 10**9, 6 * 10**8]
