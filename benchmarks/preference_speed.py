"""Speed of preference tuning against trl's `DPOTrainer`, on a GPU in bf16, else on the CPU.

    python -m benchmarks.preference_speed [WAY ...]

A way is all (all weights), lora (an adapter) or nf4 (an adapter on a base in four bits, by bitsandbytes). Needs trl,
which is not a dependency: pip install -c constraints.txt trl peft. Both sides use the same new model, the same pairs
with precomputed log-probabilities of the reference model, and fused AdamW. A step's time is the mean after the warm-up,
because batches have different lengths.
"""

import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from datasets.utils.logging import disable_progress_bar
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig

from benchmarks.gpu_ladder import Clock
from benchmarks.measure import say
from benchmarks.preference_against_trl import as_messages
from tests.support import read_rows
from tests.trainer.chats import LLAMA2, chat_model
from tests.trainer.preferences import preference_job, write_preferences
from trainer.common.progress import silent
from trainer.pipelines.any_kind import train
from trainer.store.storage import Store
from trainer.training.metrics_reader import read_records

CUDA = torch.cuda.is_available()
WARM_UP, STEPS = (20, 60) if CUDA else (2, 13)
BATCH, CONTEXT, RANK = 16, 512, 16
SIZES = (1024, 2816, 24, 16) if CUDA else (128, 256, 4, 4)
NAMES = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
MODEL: dict[str, Any] = {
    **dict(zip(NAMES, SIZES, strict=True)),
    "num_key_value_heads": SIZES[-1],
    "head_dim": SIZES[0] // SIZES[-1],
}
"""Sizes of a Llama: 310 million parameters on a GPU."""


def main(ways: list[str]) -> None:
    """Print the pairs per second of each way."""
    disable_progress_bar()
    print(
        f"preference tuning: {BATCH} pairs a step, {'bf16' if CUDA else 'fp32'}, torch {torch.__version__}", flush=True
    )
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as name:
        folder = Path(name)
        write_preferences(folder / "pairs", 4000 if CUDA else 500)
        fill_embedding(chat_model(folder / "model", template=LLAMA2, **MODEL))
        for way in ways or ["all", "lora", "nf4"]:
            ours, theirs = by_headrace(way, folder), by_trl(way, folder)
            say(f"{way}: headrace, pairs/s", f"{BATCH / ours:.1f}")
            say(f"{way}: trl, pairs/s", f"{BATCH / theirs:.1f}")
            say(f"{way}: headrace / trl", f"{theirs / ours:.2f}")


def fill_embedding(model: Path) -> None:
    """Set the embedding of a new model's first token, which is 0 because the token is also the padding.

    At 0, RMSNorm multiplies the gradient by 1,000 in every layer.
    """
    new: Any = AutoModelForCausalLM.from_pretrained(model)
    torch.nn.init.normal_(new.get_input_embeddings().weight, std=0.02)
    new.save_pretrained(model)


def by_headrace(way: str, folder: Path) -> float:
    """Seconds of a step."""
    adapter = {"lora": {"rank": RANK, "alpha": 2.0 * RANK}, **({"quantize": "nf4"} if way == "nf4" else {})}
    job = preference_job(
        folder / "pairs", folder / f"store-{way}", folder / "model", data__context=CONTEXT,
        training__epochs=None, training__max_steps=STEPS, training__global_batch=BATCH,
        training__learning_rate=1e-5, training__precision="bf16" if CUDA else "fp32",
        **{f"model__{name}": value for name, value in adapter.items() if way != "all"},
    )  # fmt: skip
    run = train(job, silent())
    steps: list[float] = [
        each["step_seconds"] for each in read_records(Store(job.store), run.key) if each["kind"] == "train"
    ]
    return statistics.mean(steps[WARM_UP:])


def by_trl(way: str, folder: Path) -> float:
    """Seconds of a step."""
    from trl import DPOConfig, DPOTrainer

    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    tokenizer.pad_token = tokenizer.eos_token
    four_bits = BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.bfloat16 if CUDA else torch.float32,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_pretrained(
        folder / "model", quantization_config=four_bits if way == "nf4" else None, dtype=torch.float32
    )
    lora = LoraConfig(r=RANK, lora_alpha=2 * RANK, target_modules="all-linear", task_type="CAUSAL_LM")
    settings = DPOConfig(
        output_dir=str(folder / "trl"), max_steps=STEPS, per_device_train_batch_size=BATCH, learning_rate=1e-5,
        max_length=CONTEXT, bf16=CUDA, use_cpu=not CUDA, gradient_checkpointing=False, precompute_ref_log_probs=True,
        optim="adamw_torch_fused", report_to="none", save_strategy="no", disable_tqdm=True,
        dataloader_num_workers=4 if CUDA else 0, dataloader_pin_memory=CUDA,
    )  # fmt: skip
    rows = [as_messages(row) for row in read_rows(folder / "pairs" / "train.jsonl")]
    clock = Clock()
    DPOTrainer(
        model=model, args=settings, train_dataset=Dataset.from_list(rows[: 2 * BATCH * STEPS]),
        processing_class=tokenizer, peft_config=None if way == "all" else lora, callbacks=[clock],
    ).train()  # fmt: skip
    return (clock.ended[-1] - clock.ended[WARM_UP - 1]) / (STEPS - WARM_UP)


if __name__ == "__main__":
    main(sys.argv[1:])
