"""Muon beside AdamW: the steps of both in a plain loop, and a run that goes on as if it had not been interrupted."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional as F
from transformers import AutoConfig, AutoModelForSequenceClassification

from tests.depth import once
from tests.support import NO_DROPOUT, SMALL_MODEL, cpu_runtime, curve, final_bytes, forget_after, rate_at, small_job
from tests.tiny_models import new_model, tiny_config
from tests.trainer.adapted_runs import lora_values, write_base
from tests.trainer.plain_loops import small_adamw
from trainer.common.errors import ConfigError
from trainer.common.progress import silent
from trainer.config.jobs import PipelineJob
from trainer.config.training import TrainingConfig
from trainer.data.dataset import open_dataset, read_batch
from trainer.data.step_plan import make_plan
from trainer.data.tokenization import shard_manifests
from trainer.kinds.pretraining.kind import identify
from trainer.models.causal import build_model, resolve_config
from trainer.models.tokenizer import TokenizerInfo, load_tokenizer
from trainer.pipelines.any_kind import train
from trainer.records.plans import PreparedData
from trainer.store.storage import Store
from trainer.training.step import block_matrices, make_optimizer, muon_matrices

STEPS = 20
VOCABULARY = TokenizerInfo(json="", sha256="", eos_id=0, max_id=299)
MUON: dict[str, Any] = {"learning_rate": 2e-2, "adjust_lr": "original"}


def muon_job(raw: Path, store: Path, **changes: Any) -> PipelineJob:
    values = {
        "model__config": {**SMALL_MODEL, **NO_DROPOUT}, "training__optimizer": "muon", "training__max_steps": STEPS,
        "training__muon": MUON, "training__learning_rate": 3e-3,
    }  # fmt: skip
    return small_job(raw, store, **{**values, **changes})


def test_matrices_step_by_muon_and_the_rest_by_adamw_as_in_a_plain_loop(
    raw: Path, stocked: Path, data: PreparedData
) -> None:
    job = muon_job(raw, stocked)
    cpu_runtime()
    run = train(job, silent(), data).key
    store, training = Store(str(stocked)), job.training
    plan = make_plan(training, shard_manifests(store, data), 1)
    dataset = open_dataset(store, data, training, plan, None)
    tokenizer = load_tokenizer(store, data.tokenizer.key)
    model = build_model(job.model, resolve_config(job.model, tokenizer, 32), training.seed)
    matrices = [p for name, p in model.named_parameters() if name.startswith("transformer.h.") and p.ndim == 2]
    embeddings = [model.transformer.wte.weight, model.transformer.wpe.weight]
    rest = [p for p in model.parameters() if p.ndim == 1]
    turned = [nn.Parameter(p.detach().T.contiguous()) for p in matrices]  # a row an output, as Jordan has it
    muon = torch.optim.Muon(turned, lr=2e-2, weight_decay=0.1)
    adamw = small_adamw(embeddings, rest)
    losses = []
    for step in range(STEPS):
        for group, peak in [*((each, 3e-3) for each in adamw.param_groups), (muon.param_groups[0], 2e-2)]:
            group["lr"] = peak * rate_at(step, STEPS)
        (inputs,) = read_batch(step, plan, dataset.order, dataset.windows, 0).micro_batches
        logits = model(input_ids=inputs["input_ids"]).logits[:, :-1]
        loss = F.cross_entropy(logits.reshape(-1, logits.shape[-1]), inputs["input_ids"][:, 1:].reshape(-1))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for matrix, stored in zip(turned, matrices, strict=True):
            assert stored.grad is not None
            matrix.grad = stored.grad.T.contiguous()
        muon.step()
        with torch.no_grad():
            for matrix, stored in zip(turned, matrices, strict=True):
                stored.copy_(matrix.T)
        adamw.step()
        model.zero_grad()
        losses.append(float(loss.detach()))
    assert [loss for _, loss, _, _ in curve(stocked)] == pytest.approx(losses, abs=1e-4)
    assert losses[-1] < losses[0] - 0.5, "it learns"
    assert curve(stocked)[1][2] == 3e-3, "the rate that is told is AdamW's"
    moments = load_file(stocked / run / "checkpoints" / f"step-{STEPS:08d}" / "optimizer.safetensors")
    assert {name.rpartition("/")[2] for name in moments if ".h." in name and "attn.c_attn.weight" in name} == {
        "momentum_buffer"
    }
    assert "model.transformer.wte.weight/exp_avg_sq" in moments


@pytest.mark.parametrize(("micro_batch", "adapts"), once((None, False), (2, False), (None, True)))
def test_a_run_that_goes_on_ends_with_the_same_bytes(
    raw: Path, stocked: Path, data: PreparedData, micro_batch: int | None, adapts: bool, tmp_path: Path
) -> None:
    saved = {"training__save_every": 2, "training__keep_last": 9}
    if adapts:  # which leaves all that is trained to Muon
        saved |= lora_values(write_base(tmp_path / "base", stocked, data)) | {"model__config": None}
    changes = {**saved, "training__max_steps": 6, "training__micro_batch": micro_batch}
    job = muon_job(raw, stocked, **changes)
    cpu_runtime()
    run = train(job, silent(), data).key
    other = Path(shutil.copytree(stocked, tmp_path / "other"))
    forget_after(other / run, 2)
    cpu_runtime()
    train(job.model_copy(update={"store": str(other)}), silent(), data)
    assert (final_bytes(other), curve(other)) == (final_bytes(stocked), curve(stocked))


def test_what_is_no_matrix_of_a_block_is_adamws(raw: Path, tmp_path: Path) -> None:
    job = muon_job(raw, tmp_path, training__muon=None)
    model = build_model(job.model, resolve_config(job.model, VOCABULARY, 32), 0)
    optimizer = make_optimizer(model, job.training)
    names = {parameter: name for name, parameter in model.named_parameters()}
    *adamw, muon = [{names[p] for p in group["params"]} for group in optimizer.param_groups]
    assert {name.rpartition(".h.")[2].partition(".")[2] for name in muon} == {
        "attn.c_attn.weight", "attn.c_proj.weight", "mlp.c_fc.weight", "mlp.c_proj.weight",
    }  # fmt: skip
    assert muon | set().union(*adamw) == set(names.values())
    assert optimizer.param_groups[-1]["lr"] == job.training.learning_rate
    assert optimizer.param_groups[-1]["adjust_lr_fn"] == "match_rms_adamw"


def test_muon_takes_its_settings(raw: Path, tmp_path: Path) -> None:
    given = {"momentum": 0.8, "nesterov": False, "ns_steps": 3}
    job = muon_job(raw, tmp_path, training__muon=given, training__weight_decay=0.2)
    model = build_model(job.model, resolve_config(job.model, VOCABULARY, 32), 0)
    muon = make_optimizer(model, job.training).param_groups[-1]
    assert {name: muon[name] for name in given} == given
    assert muon["weight_decay"] == 0.2


def test_kernels_and_what_is_spared_from_decay_are_adamws() -> None:
    model = new_model(tiny_config("mamba"))
    muon = {
        name.rpartition("layers.0.")[2]
        for name, parameter in model.named_parameters()
        if any(parameter is each for each in muon_matrices(model)) and ".layers.0." in name
    }
    assert {name.rsplit(".", 1)[-1] for name in muon} == {"weight"}
    assert {name.removesuffix(".weight") for name in muon} == {
        "mixer.in_proj", "mixer.x_proj", "mixer.dt_proj", "mixer.out_proj",
    }  # fmt: skip


def test_a_table_in_a_block_is_no_matrix() -> None:
    model = AutoModelForSequenceClassification.from_config(AutoConfig.for_model(**tiny_config("t5")))
    tables = {module.weight for module in model.modules() if isinstance(module, nn.Embedding)}
    biases = {p for name, p in model.named_parameters() if name.endswith("relative_attention_bias.weight")}
    assert biases and biases <= tables
    assert block_matrices(model) and not block_matrices(model) & tables


def test_a_job_without_muon_names_its_run_as_before_and_one_with_it_by_its_settings(
    raw: Path, stocked: Path, data: PreparedData
) -> None:
    plain, named = (identify(job, data) for job in (small_job(raw, stocked), muon_job(raw, stocked)))
    assert "muon" not in json.dumps(plain.identity)
    assert named.identity["training"]["muon"]["learning_rate"] == 2e-2
    spelt_out = {"learning_rate": 3e-3}  # that of the job
    defaults = [
        identify(muon_job(raw, stocked, training__muon=each), data).fingerprint for each in (None, {}, spelt_out)
    ]
    assert defaults[0] == defaults[1] == defaults[2] != named.fingerprint


def jordans_rate(inputs: int, outputs: int) -> float:
    """The rate of one step of 1 by Keller Jordan's muon.py, whose matrices have a row an output: max(1, rows /
    columns).
    """
    return float(max(1, outputs / inputs) ** 0.5)


@pytest.mark.parametrize("adjust_lr", ["original", "match_rms_adamw"])
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_rates_follow_inputs_and_outputs_however_a_family_stores_its_weights(family: str, adjust_lr: str) -> None:
    """GPT-2 keeps a row an input, Llama a row an output. An orthogonal update of rank r has the norm sqrt(r) times its
    rate.
    """
    model = new_model({**tiny_config(family), **({"n_inner": 96} if family == "gpt2" else {})})
    settings = {"learning_rate": 1.0, "adjust_lr": adjust_lr, "ns_steps": 5}
    training = TrainingConfig(max_steps=1, optimizer="muon", muon=settings, weight_decay=0.0)  # type: ignore[arg-type]
    matrices = {name: p for name, p in model.named_parameters() if p in block_matrices(model)}
    before = {name: matrix.detach().clone() for name, matrix in matrices.items()}
    torch.manual_seed(0)
    for matrix in model.parameters():
        matrix.grad = torch.randn_like(matrix)
    make_optimizer(model, training).step()
    shapes = set()
    for name, matrix in matrices.items():
        inputs, outputs = matrix.shape if family == "gpt2" else matrix.shape[::-1]
        wanted = jordans_rate(inputs, outputs) if adjust_lr == "original" else 0.2 * max(inputs, outputs) ** 0.5
        step = float((matrix.detach() - before[name]).norm()) / min(inputs, outputs) ** 0.5
        assert step == pytest.approx(wanted, rel=0.25), (name, tuple(matrix.shape))  # singular values are of 0.7 to 1.2
        shapes.add((inputs, outputs))
    assert any(outputs > 2 * inputs for inputs, outputs in shapes) or family == "llama"


def test_a_model_without_blocks_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"training.optimizer is muon, .* this model has none that are trained"):
        make_optimizer(nn.Linear(4, 4), TrainingConfig(max_steps=1, optimizer="muon"))
