"""A small pretrained model with the tokenizer of prepared data, and jobs that adapt it."""

import shutil
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F

from tests.support import NO_DROPOUT, SMALL_MODEL, cpu_runtime, rate_at, small_job
from tests.trainer.plain_loops import train_plainly
from trainer.common.progress import silent
from trainer.config.jobs import PipelineJob
from trainer.config.models import ModelConfig
from trainer.data.dataset import open_dataset, read_batch
from trainer.data.step_plan import make_plan
from trainer.data.tokenization import shard_manifests
from trainer.models.causal import build_model, resolve_config
from trainer.models.tokenizer import load_tokenizer
from trainer.pipelines.any_kind import train
from trainer.records.plans import PreparedData
from trainer.store.storage import Store

LORA: dict[str, Any] = {"rank": 4, "alpha": 8.0}
TRAINED = {"training__max_steps": 20, "training__learning_rate": 3e-2}


def write_base(folder: Path, store: Path, data: PreparedData, seed: int = 7, **config: Any) -> Path:
    """A GPT-2 without dropout, or a model of another family, new, and the data's tokenizer beside it."""
    values = config if "model_type" in config else {**SMALL_MODEL, **NO_DROPOUT, **config}
    options = ModelConfig(config=values)
    tokenizer = load_tokenizer(Store(str(store)), data.tokenizer.key)
    build_model(options, resolve_config(options, tokenizer, 32), seed).save_pretrained(folder)
    for path in (store / data.tokenizer.key).glob("*.json"):
        if path.name != "manifest.json":
            shutil.copy(path, folder)
    return folder


def lora_values(base: Path, lora: dict[str, Any] = LORA, **changes: Any) -> dict[str, Any]:
    """Changes to `small_values` that adapt a base model."""
    return {"model": {"pretrained": str(base), "lora": lora}, **TRAINED, **changes}


def adapt(raw: Path, store: Path, data: PreparedData, base: Path, lora: dict[str, Any] = LORA, **changes: Any) -> str:
    """Adapt a base model in this process; returns the run's key."""
    cpu_runtime()
    return train(lora_job(raw, store, base, lora, **changes), silent(), data).key


def train_adapter(adapted: Any, job: PipelineJob, data: PreparedData) -> list[float]:
    """Train an adapted model on a job's batches in a plain loop, at the rates of a cosine; the loss of each step."""
    store, training = Store(job.store), job.training
    plan = make_plan(training, shard_manifests(store, data), 1)
    dataset = open_dataset(store, data, training, plan, None)
    optimizer = torch.optim.AdamW(
        [p for p in adapted.parameters() if p.requires_grad],
        lr=training.learning_rate,
        betas=(0.9, 0.95),
        eps=training.epsilon,
        weight_decay=0.1,
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate_at(step, plan.total_steps))

    def loss_at(step: int) -> torch.Tensor:
        (inputs,) = read_batch(step, plan, dataset.order, dataset.windows, 0).micro_batches
        ids = inputs["input_ids"]
        logits = adapted(input_ids=ids).logits[:, :-1]
        return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), ids[:, 1:].reshape(-1))

    return train_plainly(optimizer, schedule, map(loss_at, range(plan.total_steps)))


def lora_job(raw: Path, store: Path, base: Path, lora: dict[str, Any] = LORA, **changes: Any) -> PipelineJob:
    return small_job(raw, store, **lora_values(base, lora, **changes))
