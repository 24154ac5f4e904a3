"""Low-rank adapters: trained as `peft` does it in a plain loop, saved without their base, published in two forms."""

import copy
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import AutoPeftModelForCausalLM, PeftModel, get_peft_model
from peft import LoraConfig as PeftLora
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

import trainer.training.run as run_module
from tests.depth import once
from tests.support import curve, digests, failing_first, final_bytes, forget_after, records, small_job
from tests.tiny_models import new_model, tiny_config
from tests.trainer.adapted_runs import LORA, adapt, lora_job, train_adapter, write_base
from tests.trainer.training.test_impossible_state import forge_tensors
from trainer.common import transient
from trainer.common.errors import ArtifactError, ConfigError, RunError, StorageError
from trainer.common.progress import silent
from trainer.config.jobs import EvaluateJob
from trainer.config.models import LoraConfig
from trainer.kinds.kind import identify_run, kind_of
from trainer.models.adapters import FUSED, add_adapter, find_targets, merge, restore_adapter, save_model
from trainer.models.causal import load_model
from trainer.models.pretrained import find_model
from trainer.models.weights import Base
from trainer.pipelines.any_kind import evaluate_checkpoint
from trainer.preflight.step_status import StepStatus, explain_run
from trainer.records.plans import PreparedData
from trainer.records.sealed import read_pointer, read_sealed
from trainer.registry.compared_runs import read_runs
from trainer.registry.report import make_report
from trainer.store.storage import Store
from trainer.training.run import _warn_temporary_base

STEPS = 20

# peft asks transformers by a name that this one will not have for ever.
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")


@pytest.fixture(scope="module")
def base(prepared: tuple[Path, PreparedData], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that is adapted; not to be written to."""
    return write_base(tmp_path_factory.mktemp("base") / "model", *prepared)


def test_a_model_is_adapted_as_peft_does_it_in_a_plain_loop(
    raw: Path, stocked: Path, data: PreparedData, base: Path
) -> None:
    damped = {"training__epsilon": 1e-3}  # else Adam takes a whole step by a gradient that is nothing but rounding
    run = adapt(raw, stocked, data, base, **damped)
    job = lora_job(raw, stocked, base, **damped)
    plain = AutoModelForCausalLM.from_pretrained(base)
    torch.manual_seed(job.training.seed)
    targets = ["c_attn", "c_proj", "c_fc"]
    adapted = get_peft_model(plain, PeftLora(r=4, lora_alpha=8, target_modules=targets, fan_in_fan_out=True))
    losses = train_adapter(adapted, job, data)
    assert [loss for _, loss, _, _ in curve(stocked)] == pytest.approx(losses, abs=1e-4)
    merged = adapted.merge_and_unload().state_dict()
    published = load_file(stocked / run / "final" / "model.safetensors")
    assert max(float((merged[name] - each).abs().max()) for name, each in published.items()) < 1e-6
    started = load_file(base / "model.safetensors")
    assert max(float((started[name] - each).abs().max()) for name, each in published.items()) > 0.1, (
        "far from where it began"
    )


def test_a_checkpoint_holds_the_adapter_and_its_optimizer_alone_and_names_its_base(
    raw: Path, stocked: Path, data: PreparedData, base: Path
) -> None:
    run = adapt(raw, stocked, data, base, training__max_steps=3)
    folder = stocked / run / "checkpoints" / "step-00000003"
    assert not (folder / "model.safetensors").exists()
    adapter, moments = load_file(folder / "adapter_model.safetensors"), load_file(folder / "optimizer.safetensors")
    assert len(adapter) == 2 * 4 * 2, "A and B of four layers in each of two blocks"
    assert {name.rpartition("/")[0].replace(".default", "") for name in moments} == {
        name.replace("base_model.model.", "model.", 1) for name in adapter
    }
    named = json.loads((folder / "base_model.json").read_text())
    assert named["name"] == str(base) and named["files"]["model.safetensors"] == digests(base)["model.safetensors"]
    whole = (base / "model.safetensors").stat().st_size
    assert sum(path.stat().st_size for path in folder.glob("*.safetensors")) < whole


def test_the_final_model_is_a_plain_one_and_the_report_says_how_much_was_trained(
    raw: Path, stocked: Path, data: PreparedData, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = StorageError("the store is away", transient=True)
    monkeypatch.setattr(transient, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(run_module, "publish_folder", failing_first([away], run_module.publish_folder))
    run = adapt(raw, stocked, data, base, training__max_steps=3)
    model, started = (AutoModelForCausalLM.from_pretrained(folder) for folder in (stocked / run / "final", base))
    assert sorted(model.state_dict()) == sorted(started.state_dict())
    trained = json.loads((stocked / run / "final" / "manifest.json").read_text())["details"]["trained"]
    adapter = load_file(stocked / run / "checkpoints" / "step-00000003" / "adapter_model.safetensors")
    assert trained["trained"] == sum(each.numel() for each in adapter.values())
    page = Store(str(stocked)).read_bytes(make_report(Store(str(stocked)), run).key).decode()
    assert "Trained parameters" in page and "rank 4, alpha 8, dropout 0, on every linear layer; merged" in page


def test_training_goes_on_from_the_adapter_with_the_same_bytes_and_dropout(
    raw: Path, stocked: Path, data: PreparedData, base: Path, tmp_path: Path
) -> None:
    lora = {**LORA, "dropout": 0.3}
    changes = {"training__max_steps": 6, "training__save_every": 2, "training__keep_last": 9}
    run = adapt(raw, stocked, data, base, lora, **changes)
    whole = final_bytes(stocked)
    other = Path(shutil.copytree(stocked, tmp_path / "other"))
    forget_after(other / run, 2)
    assert adapt(raw, other, data, base, lora, **changes) == run
    assert final_bytes(other) == whole
    assert curve(other) == curve(stocked)
    assert [r["loss"] for r in records(stocked, "train")][1:] != [
        r["loss"] for r in records(dropless(raw, tmp_path / "dry", stocked, data, base, changes), "train")
    ][1:], "the dropout drops"


def dropless(raw: Path, store: Path, stocked: Path, data: PreparedData, base: Path, changes: dict[str, int]) -> Path:
    shutil.copytree(stocked, store, ignore=shutil.ignore_patterns("runs"))
    adapt(raw, store, data, base, **changes)
    return store


def test_a_run_does_not_go_on_beside_another_base_model(
    raw: Path, stocked: Path, prepared: tuple[Path, PreparedData], data: PreparedData, tmp_path: Path
) -> None:
    base = write_base(tmp_path / "base", *prepared)
    changes = {"training__max_steps": 4, "training__save_every": 2, "run": "named"}
    adapt(raw, stocked, data, base, **changes)
    shutil.rmtree(stocked / "runs/named/final")
    write_base(base, *prepared, seed=8)
    with pytest.raises(RunError, match=r"was trained with other settings: model.pretrained.model.safetensors"):
        adapt(raw, stocked, data, base, **changes)
    with pytest.raises(
        ArtifactError, match=r"an adapter of .*, but the files of .* have changed \(model.safetensors: expected"
    ):
        find_model(Store(str(stocked)), "runs/named/checkpoints/step-00000004")


def test_a_base_model_of_a_relative_path_is_found_from_other_folders(
    raw: Path, stocked: Path, prepared: tuple[Path, PreparedData], data: PreparedData, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    base = write_base(tmp_path / "there" / "base", *prepared)
    monkeypatch.chdir(base.parent)
    run = adapt(raw, stocked, data, Path("base"), {**LORA, "publish": "adapter"}, training__max_steps=2)
    monkeypatch.chdir(tmp_path)
    store, final = Store(str(stocked)), f"{run}/final"
    assert find_model(store, final).beside == str(base)
    assert isinstance(AutoPeftModelForCausalLM.from_pretrained(stocked / final), PeftModel), "by peft's own file too"
    moved = base.rename(tmp_path / "base")
    assert find_model(store, final).beside == "base", "seen from here"
    moved.rename(tmp_path / "elsewhere")
    with pytest.raises(ArtifactError, match=rf"is an adapter of the model 'base', which is neither in {base}, where"):
        find_model(store, final)


def test_an_adapter_that_is_published_computes_what_the_merged_model_does(
    raw: Path, stocked: Path, data: PreparedData, base: Path, tmp_path: Path
) -> None:
    merged = adapt(raw, stocked, data, base, training__max_steps=5, run="merged")
    run = adapt(raw, stocked, data, base, {**LORA, "publish": "adapter"}, training__max_steps=5)
    final = stocked / run / "final"
    assert {path.name for path in final.glob("*.safetensors")} == {"adapter_model.safetensors"}
    ids = torch.arange(16)[None]
    plain = AutoModelForCausalLM.from_pretrained(stocked / merged / "final").eval()
    loaded = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), str(final)).eval()
    with torch.no_grad():
        assert torch.allclose(loaded(ids).logits, plain(ids).logits, atol=1e-5)
    one, other = (
        evaluate_checkpoint(
            EvaluateJob(store=str(stocked), checkpoint=f"{each}/final", evaluation={"max_windows": 4}), silent()
        )
        for each in (run, merged)
    )
    assert one.groups == other.groups
    store = Store(str(stocked))
    card = (final / "README.md").read_text() if make_report(store, run) else ""
    counted = {each.key: each.parameters for each in read_runs(store, ["merged", run])}
    added = sum(each.numel() for each in load_file(final / "adapter_model.safetensors").values())
    assert counted == {merged: plain.num_parameters(), run: plain.num_parameters() + added}
    assert "library_name: peft" in card and "PeftModel.from_pretrained(base, folder)" in card
    assert f"| Parameters of the adapter | {added:,} in float32 |" in card
    with pytest.raises(
        ConfigError, match=r"is an adapter without its base model's weights: use a run with model.lora.publish: merged"
    ):
        kind = kind_of(further := lora_job(raw, stocked, final))
        kind.preflight(further, silent())


def test_an_adapter_generates_with_its_own_settings_whatever_its_bases_folder_says_later(
    raw: Path, stocked: Path, data: PreparedData, base: Path, tmp_path: Path
) -> None:
    moved = Path(shutil.copytree(base, tmp_path / "base"))
    run = adapt(raw, stocked, data, moved, {**LORA, "publish": "adapter"}, training__max_steps=2)
    settings = moved / "generation_config.json"
    settings.write_text(json.dumps({**json.loads(settings.read_text()), "repetition_penalty": 50.0}))
    found = find_model(Store(str(stocked)), f"{run}/final")
    generating: Any = load_model(found.folder, beside=found.beside).generation_config
    assert generating.repetition_penalty in (None, 1.0)


def test_the_other_form_is_published_without_training_again(
    raw: Path, stocked: Path, data: PreparedData, base: Path, caplog: pytest.LogCaptureFixture
) -> None:
    changes = {
        "training__max_steps": 5,
        "training__save_every": 2,
        "training__final": "best",
        "training__evaluate_every": 2,
    }
    run = adapt(raw, stocked, data, base, **changes)
    final, rows = stocked / run / "final", records(stocked, "train")
    merged = digests(final)
    store = Store(str(stocked))
    asked = lora_job(raw, stocked, base, {**LORA, "publish": "adapter"}, **changes)

    def foreseen() -> StepStatus:
        return explain_run(store, asked, data, (), identify_run)

    assert (foreseen().verdict, foreseen().key) == ("continued", run)
    assert foreseen().reasons == ("continues from step 5 of 5", "model.lora.publish: merged -> adapter")
    assert adapt(raw, stocked, data, base, {**LORA, "publish": "adapter"}, **changes) == run
    assert {path.name for path in final.glob("*.safetensors")} == {"adapter_model.safetensors"}
    best = read_pointer(store, f"{run}/checkpoint-best")
    assert best is not None
    saved = stocked / run / best.checkpoint / "adapter_model.safetensors"
    assert (final / "adapter_model.safetensors").read_bytes() == saved.read_bytes()
    assert foreseen().verdict == "reused"
    assert read_sealed(store, f"{run}/config.json")["job"]["model"]["lora"]["publish"] == "adapter"  # type: ignore[index]
    assert adapt(raw, stocked, data, base, **changes) == run
    assert {name: each for name, each in digests(final).items() if name != "manifest.json"} == {
        name: each for name, each in merged.items() if name != "manifest.json"
    }
    assert records(stocked, "train") == rows, "no step was taken again"
    shutil.rmtree(stocked / run / "checkpoints")
    for pointer in ("checkpoint-last", "checkpoint-best"):
        (stocked / run / pointer).unlink()
    assert foreseen().reasons[0] == "it was started and has no checkpoint yet"
    adapt(raw, stocked, data, base, {**LORA, "publish": "adapter"}, **changes)
    assert "has no checkpoint left to publish its final model from: training it again" in caplog.text
    assert (final / "adapter_model.safetensors").read_bytes() == saved.read_bytes()


@pytest.mark.parametrize(
    ("targets", "said"),
    [
        (
            ["q_proj"],
            r"no module's name ends with 'q_proj'; the nearest are c_proj, .*; all are c_attn, c_fc, c_proj, "
            r"lm_h",
        ),
        (["wte"], r"transformer.wte is a Embedding, but only linear layers can be adapted"),
        (["lm_head"], r"lm_head shares its weight with the input embeddings"),
    ],
)
def test_targets_that_cannot_be_adapted_are_refused_before_anything_is_done(
    raw: Path, stocked: Path, base: Path, targets: list[str], said: str
) -> None:
    job = lora_job(raw, stocked, base, {**LORA, "targets": targets})
    with pytest.raises(ConfigError, match=said):
        kind_of(job).preflight(job, silent())


def test_a_router_that_is_a_linear_layer_is_not_adapted() -> None:
    model = new_model(tiny_config("phimoe")).eval()
    assert isinstance(model.model.layers[0].mlp.router, torch.nn.Linear)
    tokens = torch.arange(8)[None]
    before = model(input_ids=tokens).logits
    add_adapter(model, LoraConfig(rank=2, alpha=4.0), seed=0)
    assert torch.equal(model(input_ids=tokens).logits, before), "B is zero"
    adapted = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert {name.split(".")[4] for name in adapted} == {"q_proj", "k_proj", "v_proj", "o_proj"}
    with pytest.raises(ConfigError, match=r"mlp.router is a PhimoeTopKRouter, but only linear layers can be adapted"):
        find_targets(model, ["router"], [])


@pytest.mark.parametrize("family", sorted(FUSED))
def test_the_layers_of_mamba_that_peft_refuses_are_not_adapted(family: str) -> None:
    model = new_model(tiny_config(family))
    with pytest.raises(
        ConfigError, match=rf"cannot adapt this '{family}' model: .*'out_proj' is incompatible with Mam"
    ):
        add_adapter(copy.deepcopy(model), LoraConfig(rank=2, alpha=4.0, targets=["out_proj"]), seed=0)
    add_adapter(model, LoraConfig(rank=2, alpha=4.0), seed=0)
    adapted = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    assert adapted and not any("out_proj" in name for name in adapted)


@pytest.mark.filterwarnings("ignore:The following:RuntimeWarning:peft")  # peft's own loading says what is not so
@pytest.mark.parametrize("family", once("deepseek_v3", "afmoe", "glm4_moe", "qwen3_next"))
@pytest.mark.parametrize("targets", once(None, ["down_proj"], ["gate_proj", "up_proj"]))
def test_the_adapted_experts_of_a_mixture_are_merged_saved_and_loaded_as_they_were_trained(
    family: str, targets: list[str] | None, tmp_path: Path
) -> None:
    plain, model = (new_model(tiny_config(family)).eval() for _ in range(2))
    add_adapter(model, LoraConfig(rank=4, alpha=8.0, targets=targets), seed=0)
    trained = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    assert any(".experts." in name for name, _ in trained), "as peft understands these names"
    for name, parameter in trained:
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.05)
    plain.save_pretrained(tmp_path / "base")
    (final := tmp_path / "final").mkdir()
    save_model(model, final, Base(name="base", origin="folder", key=None, path=str(tmp_path / "base"), files={}))
    restored = copy.deepcopy(plain)
    restore_adapter(restored, final)
    loaded = PeftModel.from_pretrained(copy.deepcopy(plain), str(final))
    ids = torch.arange(24)[None]
    with torch.no_grad():
        before, adapted = plain(input_ids=ids).logits, model.eval()(input_ids=ids).logits
        for same in (restored, loaded, merge(model), merge(copy.deepcopy(restored))):
            assert torch.allclose(same.eval()(input_ids=ids).logits, adapted, atol=1e-5)
    assert not torch.allclose(before, adapted, atol=1e-3)


@pytest.mark.parametrize("family", ["zamba", "zamba2"])
def test_layers_that_share_their_weights_are_not_adapted_so_that_the_merged_model_is_the_trained_one(
    family: str, caplog: pytest.LogCaptureFixture
) -> None:
    model = new_model(tiny_config(family)).eval()
    shared = next(name for name, _ in model.named_modules() if name.endswith("self_attn.q_proj"))
    with pytest.raises(ConfigError, match=r"q_proj shares its weight with model.layers.*q_proj, which merging the ad"):
        find_targets(model, ["q_proj"], [])
    with caplog.at_level("INFO"):
        add_adapter(model, LoraConfig(rank=4, alpha=8.0), seed=0)
    assert "not adapted, because they share their weights" in caplog.text and shared in caplog.text
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.05)
    ids = torch.arange(24)[None]
    with torch.no_grad():
        adapted = model(input_ids=ids, use_cache=False).logits
        merged = merge(model)(input_ids=ids, use_cache=False).logits
    assert torch.allclose(merged, adapted, atol=1e-5)


def test_an_adapter_of_layers_that_share_their_weights_is_not_continued(tmp_path: Path) -> None:
    model = new_model(tiny_config("zamba"))
    PeftLora(r=2, target_modules=["q_proj"]).save_pretrained(tmp_path)
    with pytest.raises(ArtifactError, match=r"adapts .*q_proj, which shares its weight with model.layers.*q_proj"):
        restore_adapter(model, tmp_path)


def test_the_preflight_counts_what_is_trained(raw: Path, stocked: Path, base: Path) -> None:
    adapted, whole = lora_job(raw, stocked, base), small_job(raw, stocked, model={"pretrained": str(base)})
    one, other = (kind_of(job).preflight(job, silent()) for job in (adapted, whole))
    assert one.trained < other.trained == other.parameters < one.parameters
    assert any("of them trained" in line for line in one.lines())


def test_a_checkpoint_whose_moments_are_not_those_of_the_adapter_is_passed_over(
    raw: Path, stocked: Path, data: PreparedData, base: Path, caplog: pytest.LogCaptureFixture
) -> None:
    changes = {"training__max_steps": 4, "training__save_every": 2, "training__keep_last": 9}
    run = adapt(raw, stocked, data, base, **changes)
    whole, key = final_bytes(stocked), f"{run}/checkpoints/step-00000004"
    moments = load_file(stocked / key / "optimizer.safetensors")
    name = next(each for each in moments if each.endswith("lora_A.default.weight/exp_avg"))
    other = {name: torch.zeros(1, 3)}
    forge_tensors(Store(str(stocked)), key, "optimizer.safetensors", lambda tensors: tensors.update(other))
    shutil.rmtree(stocked / run / "final")
    adapt(raw, stocked, data, base, **changes)
    assert "of shape (1, 3) for a weight of shape (4, 32)" in caplog.text
    assert final_bytes(stocked) == whole


@pytest.mark.parametrize(
    ("key", "told"), [("runs/a/final", False), ("runs/a/checkpoints/step-00000010", True), (None, False)]
)
def test_a_base_that_its_run_may_delete_is_told(key: str | None, told: bool, caplog: pytest.LogCaptureFixture) -> None:
    files = {"model.safetensors": "ab"}
    _warn_temporary_base(Base(name="base", origin="store" if key else "hub", key=key, files=files))
    assert (f"adapter depends on {key}, a checkpoint that its run may delete when it continues" in caplog.text) == told
