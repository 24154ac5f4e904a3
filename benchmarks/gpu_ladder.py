"""Training speed of one GPU, rung by rung: `python -m benchmarks.gpu_ladder gpt2|llama [RUNG ...] [--profile FILE]`.

gpt2 has 124M parameters, a context of 1,024 and a vocabulary of 50,304; llama has 1.1B and a context of 2,048. All run
in bf16, without dropout, on random tokens. Each rung uses the trainer's step. Tokens per second, MFU and peak memory
are measured after the warm-up. The last rungs are transformers.Trainer, a loop like nanoGPT's around transformers'
model, and for gpt2 the same loop around a plain model, each with its best settings. With --profile, each of the
trainer's rungs writes a profile of three steps to the file's name with the rung's name added.
"""

import argparse
import gc
import statistics
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import cross_entropy
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    LlamaConfig,
    PretrainedConfig,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

import trainer.models.losses
from benchmarks.measure import say
from benchmarks.plain_gpt2 import PlainGPT2
from trainer.config.training import TrainingConfig
from trainer.data.dataset import Batch
from trainer.models.attention_masks import leave_out_masks
from trainer.models.losses import CausalLMLoss, next_tokens
from trainer.training.runtime import Runtime, prefer_cudnn_attention, seed_everything, start_runtime
from trainer.training.schedules import make_schedule
from trainer.training.step import make_optimizer, train_step
from trainer.training.throughput import flops_per_token, peak_flops

VOCABULARY = 50_304
WARM_UP, STEPS = 6, 12
KERNELS = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}
REST = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
"""Attention backends; the first ones do not support float32, which the others compute."""


@dataclass(frozen=True)
class Rung:
    """One way to train: logits per chunk (None: all), compilation, rows per micro-batch, attention masks and kernel."""

    chunk: int | None = 2**28
    compile: bool = True
    rows: int = 32
    accumulate: int = 2
    masks: bool = False
    attention: str | None = None
    mode: str | None = None


RUNGS = {
    "eager-21": Rung(2**21, compile=False, accumulate=1),
    "eager-26": Rung(2**26, compile=False),
    "eager-28": Rung(2**28, compile=False),
    "eager-plain": Rung(None, compile=False),
    "26": Rung(2**26),
    "28": Rung(2**28),
    "30": Rung(2**30),
    "31": Rung(2**31),
    "plain": Rung(None),
    "rows-16": Rung(rows=16, accumulate=4),
    "rows-64": Rung(rows=64, accumulate=1),
    "with-masks": Rung(masks=True),
    "flash": Rung(2**31, attention="flash"),
    "cudnn": Rung(2**31, attention="cudnn"),
    "autotuned": Rung(mode="max-autotune-no-cudagraphs"),
    "graphs": Rung(mode="reduce-overhead"),
}


def configuration(name: str) -> PretrainedConfig:
    """The model's configuration; its context is max_position_embeddings."""
    if name == "gpt2":
        return GPT2Config(
            vocab_size=VOCABULARY, n_positions=1024, bos_token_id=0, eos_token_id=0, resid_pdrop=0.0, embd_pdrop=0.0,
            attn_pdrop=0.0,
        )  # fmt: skip
    return LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=2048, intermediate_size=5632, num_hidden_layers=22, num_attention_heads=32,
        num_key_value_heads=4, max_position_embeddings=2048, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip


def new_model(config: PretrainedConfig) -> Any:
    """A new model in float32 with fixed initial weights."""
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="sdpa")


def tokens(rows: int, config: PretrainedConfig) -> torch.Tensor:
    """Random token ids of shape [rows, context]."""
    return torch.randint(VOCABULARY, (rows, config.max_position_embeddings))


def measured(step: Callable[[], torch.Tensor], in_step: int, model: Any, config: PretrainedConfig) -> dict[str, float]:
    """The figures of a step over a number of tokens. The tokens are the same every time, so its loss must fall."""
    torch.cuda.reset_peak_memory_stats()
    started = time.perf_counter()
    first = float(step())
    for _ in range(WARM_UP - 1):
        step()
    torch.cuda.synchronize()
    warm = time.perf_counter() - started
    seconds = []
    for _ in range(3):
        started = time.perf_counter()
        for _ in range(STEPS // 3):
            last = step()
        torch.cuda.synchronize()
        seconds.append((time.perf_counter() - started) / (STEPS // 3))
    return figures(in_step / statistics.median(seconds), model, config) | {
        "s warm-up": warm,
        "nats less": first - float(last),
    }


def figures(rate: float, model: Any, config: PretrainedConfig) -> dict[str, float]:
    """The printed figures for a rate in tokens per second."""
    flops = flops_per_token(model, config, config.max_position_embeddings)
    peak = peak_flops(torch.device("cuda"), "bf16")
    return {"tokens/s": rate, "MFU %": 100 * rate * flops / peak, "GiB": torch.cuda.max_memory_allocated() / 2**30}


def ours(rung: Rung, config: PretrainedConfig, runtime: Runtime, scale: int, profile: Path | None) -> dict[str, float]:
    """The trainer's step with a rung's settings."""
    model = new_model(config)
    objective: Any = CausalLMLoss(model)
    if rung.chunk is None:
        objective._in_pieces = False
    else:
        trainer.models.losses.LOGITS_AT_ONCE["cuda"] = rung.chunk
    wrapped = runtime.accelerator.prepare_model(objective)
    if rung.compile:
        if not rung.masks:
            leave_out_masks(model, tokens(1, config).cuda())
        wrapped.compile(mode=rung.mode)
    training = TrainingConfig(max_steps=10**6, context=config.max_position_embeddings, global_batch=rung.rows)
    optimizer = make_optimizer(wrapped, training)
    schedule = make_schedule(optimizer, training, 10**6)
    prepared = runtime.accelerator.prepare_optimizer(optimizer)
    rows = rung.rows // scale
    parts = [{"input_ids": tokens(rows, config).cuda()} for _ in range(rung.accumulate)]
    in_step = rows * rung.accumulate * config.max_position_embeddings
    batch = Batch(parts, in_step, in_step)

    def step() -> torch.Tensor:
        seed_everything(0, 0, 0)
        return train_step(wrapped, prepared, schedule, batch, 1.0, runtime).loss

    found = measured(step, in_step, model, config)
    if profile is not None:
        write_profile(step, profile)
    return found


def write_profile(step: Callable[[], object], path: Path) -> None:
    """The profile of three steps, as a table."""
    kinds = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=kinds) as profile:
        for _ in range(3):
            step()
        torch.cuda.synchronize()
    path.write_text(
        profile.key_averages().table(sort_by="self_cuda_time_total", row_limit=40, max_name_column_width=90)
    )


def nanogpt_loop(config: PretrainedConfig, rows: int, accumulate: int, plain: bool) -> dict[str, float]:
    """Autocast, a compiled model, plain logits, fused AdamW and clipping, as in karpathy/nanoGPT's train.py."""
    known = new_model(config)
    model = PlainGPT2(config).cuda() if plain else known.cuda()
    compiled: Any = torch.compile(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, betas=(0.9, 0.95), fused=True)
    parts = [tokens(rows, config).cuda() for _ in range(accumulate)]

    def step() -> torch.Tensor:
        for input_ids in parts:
            with torch.autocast("cuda", torch.bfloat16):
                if plain:
                    loss: torch.Tensor = compiled(input_ids)
                else:
                    logits = compiled(input_ids=input_ids, use_cache=False).logits
                    loss = cross_entropy(logits.flatten(0, 1), next_tokens(input_ids).flatten(), ignore_index=-100)
            (loss / accumulate).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return measured(step, rows * accumulate * config.max_position_embeddings, known, config)


class Rows(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Random rows for Trainer."""

    def __init__(self, rows: torch.Tensor) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.rows[number], "labels": self.rows[number]}


class Clock(TrainerCallback):
    """Records the end time of each step."""

    def __init__(self) -> None:
        self.ended: list[float] = []

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.ended.append(time.perf_counter())


def hf_trainer(config: PretrainedConfig, rows: int, accumulate: int) -> dict[str, float]:
    """transformers.Trainer: bf16, compiled, fused AdamW, read-ahead workers."""
    model, clock, steps = new_model(config), Clock(), WARM_UP + STEPS
    torch.cuda.reset_peak_memory_stats()
    arguments = TrainingArguments(
        output_dir="/tmp/hf", per_device_train_batch_size=rows, gradient_accumulation_steps=accumulate, max_steps=steps,
        bf16=True, torch_compile=True, optim="adamw_torch_fused", dataloader_num_workers=4, dataloader_pin_memory=True,
        learning_rate=6e-4, logging_steps=10, save_strategy="no", report_to=[], disable_tqdm=True,
    )  # fmt: skip
    dataset = Rows(tokens(rows * accumulate * steps, config))
    Trainer(model, arguments, train_dataset=dataset, callbacks=[clock]).train()
    seconds = [after - before for before, after in zip(clock.ended[WARM_UP - 1 :], clock.ended[WARM_UP:], strict=False)]
    return figures(rows * accumulate * config.max_position_embeddings / statistics.median(seconds), model, config)


def climb(name: str, wanted: list[str], profile: Path | None) -> Iterator[tuple[str, dict[str, float] | Exception]]:
    """Each rung's figures or error."""
    runtime, config = start_runtime("bf16"), configuration(name)
    scale = 1 if name == "gpt2" else 4
    rows = Rung().rows // scale
    ways: dict[str, Callable[[], dict[str, float]]] = {
        title: partial(ours, rung, config, runtime, scale, profile and profile.with_stem(f"{profile.stem}-{title}"))
        for title, rung in RUNGS.items()
    }
    ways["nanoGPT's loop"] = lambda: nanogpt_loop(config, rows, 2, plain=False)
    if name == "gpt2":
        ways["nanoGPT's loop, plain GPT-2"] = lambda: nanogpt_loop(config, rows, 2, plain=True)
    ways["Trainer"] = lambda: hf_trainer(config, rows, 2)
    for title in wanted or ways:
        kernel = RUNGS[title].attention if title in RUNGS else "flash"  # PyTorch chooses among the others
        try:
            preferred = prefer_cudnn_attention(runtime.device)
            with sdpa_kernel([KERNELS[kernel], *REST], set_priority=True) if kernel else preferred:
                yield title, ways[title]()
        except Exception as error:  # continue with the other rungs
            traceback.print_exc()
            yield title, error
        torch._dynamo.reset()
        gc.collect()
        torch.cuda.empty_cache()


def main(model: str, rungs: list[str], profile: Path | None) -> None:
    """Print each rung's figures when it is finished."""
    print(f"{model} on {torch.cuda.get_device_name(0)}, torch {torch.__version__}, bf16", flush=True)
    for title, found in climb(model, rungs, profile):
        if isinstance(found, Exception):
            say(title, f"{type(found).__name__}: {str(found)[:100]}")
        else:
            say(title, ", ".join(f"{value:,.1f} {unit}" for unit, value in found.items()))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("model", choices=["gpt2", "llama"])
    parser.add_argument("rungs", nargs="*", metavar="RUNG")
    parser.add_argument("--profile", type=Path)
    main(**vars(parser.parse_args()))
