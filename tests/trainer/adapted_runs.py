"""A small pretrained model with the tokenizer of prepared data, and jobs that adapt it."""

import shutil
from pathlib import Path
from typing import Any

from tests.support import NO_DROPOUT, SMALL_MODEL, cpu_runtime, small_job
from trainer.common.progress import silent
from trainer.config.jobs import PipelineJob
from trainer.config.models import ModelConfig
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


def lora_job(raw: Path, store: Path, base: Path, lora: dict[str, Any] = LORA, **changes: Any) -> PipelineJob:
    return small_job(raw, store, **lora_values(base, lora, **changes))
