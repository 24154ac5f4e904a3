"""Tokens per second of training, against `transformers.Trainer` with the same model, data and precision.

Measured eager and compiled. Both sides train alternately in one process, a few steps at a time, so that other work on
the machine slows both. Each side runs its own whole loop: data, clipping, optimizer, schedule and logging.
"""

import dataclasses
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    AutoModelForCausalLM,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from benchmarks.jobs import job, raw_corpora
from benchmarks.measure import say, spread
from trainer.common.progress import Bar, silent
from trainer.config.jobs import PipelineJob
from trainer.data.dataset import Dataset, batches_from, open_dataset, read_batch
from trainer.data.step_plan import make_plan
from trainer.data.tokenization import shard_manifests
from trainer.kinds.pretraining.kind import prepare
from trainer.models.causal import build_model, resolve_config
from trainer.models.dropout import draw_fast
from trainer.models.losses import CausalLMLoss
from trainer.models.tokenizer import load_tokenizer
from trainer.records.evaluations import Criterion
from trainer.records.plans import PreparedData
from trainer.records.steps import here
from trainer.store.storage import Store
from trainer.training.checkpoint import TrainState
from trainer.training.compiling import compile_objective
from trainer.training.loop import Session, run_loop
from trainer.training.runtime import start_runtime
from trainer.training.schedules import make_schedule
from trainer.training.step import make_optimizer
from trainer.training.throughput import Meter, flops_per_token, measured_flops

STEPS = 10
ROUNDS = 10
WARM_UP = 3
FAR = 10**6
PLAIN = "sdpa_of_transformers"
"""transformers' attention, which headrace replaces on a CPU if attention weights have dropout."""


class Clock(Bar):
    """Detects that the loop has recorded a step, which it does after the last step of a round."""

    def __init__(self) -> None:
        super().__init__("", None, "step", lambda update: None, float("inf"))
        self.reached = 0.0

    def reach(self, done: int, note: str = "") -> None:
        self.reached = time.perf_counter()


class Ours:
    """headrace's loop, a few steps at a time."""

    def __init__(self, bench: PipelineJob, data: PreparedData, dataset: Dataset) -> None:
        store, training = Store(bench.store), bench.training
        runtime = start_runtime(training.precision)
        plan = make_plan(training, shard_manifests(store, data), 1)
        config = resolve_config(bench.model, load_tokenizer(store, data.tokenizer.key), training.context)
        self.model = build_model(bench.model, config, training.seed)
        draw_fast(self.model)
        objective = runtime.accelerator.prepare_model(CausalLMLoss(self.model))
        if training.compile:
            compile_objective(objective, self.model, runtime, read_batch(0, plan, dataset.order, dataset.windows, 0))
        optimizer = make_optimizer(objective, training)
        self.clock = Clock()
        self.session = Session(
            training, plan, runtime, self.model, objective, runtime.accelerator.prepare_optimizer(optimizer),
            make_schedule(optimizer, training, FAR), TrainState(), lambda: None, None, None,
            Criterion("loss", False), None, None,
            Meter(runtime.device, 1.0, 1.0), self.clock, lambda session: None,
        )  # fmt: skip
        self.batches = batches_from(
            0, lambda number: read_batch(number, plan, dataset.order, dataset.windows, 0), runtime.device
        )

    def run(self) -> float:
        """Train a round; return its seconds."""
        plan = self.session.plan.model_copy(update={"total_steps": self.session.state.step + STEPS})
        started = time.perf_counter()
        run_loop(dataclasses.replace(self.session, plan=plan), self.batches)
        return self.clock.reached - started


class Taking(TrainerCallback):
    """After each round of Trainer's steps, records its time and lets the other side run a round."""

    def __init__(self, ours: Ours) -> None:
        self.ours, self.started = ours, 0.0
        self.pairs: list[tuple[float, float]] = []

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        if state.global_step % STEPS == 0:
            theirs = time.perf_counter() - self.started
            self.pairs.append((self.ours.run(), theirs))
            self.started = time.perf_counter()


class WindowList(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """The same windows as a data set for Trainer."""

    def __init__(self, dataset: Dataset) -> None:
        self.windows = dataset.windows[0]

    def __len__(self) -> int:
        return len(self.windows)

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        window = torch.from_numpy(self.windows.inputs(number)["input_ids"])
        return {"input_ids": window, "labels": window}


def compare(folder: Path, compiled: bool, rounds: int) -> None:
    """Train both alternately for a number of rounds, and print the figures."""
    bench = job(folder, max_steps=FAR, log_every=STEPS, compile=compiled)
    data = prepare(bench.preparation(), here(silent()))
    store = Store(bench.store)
    plan = make_plan(bench.training, shard_manifests(store, data), 1)
    dataset = open_dataset(store, data, bench.training, plan, 1)
    ours = Ours(bench, data, dataset)
    taking = Taking(ours)
    arguments = TrainingArguments(
        output_dir=str(folder / "hf"), per_device_train_batch_size=8, max_steps=STEPS * rounds, learning_rate=5e-4,
        lr_scheduler_type="cosine", weight_decay=0.1, logging_steps=STEPS, save_strategy="no", report_to=[],
        disable_tqdm=True, use_cpu=True, torch_compile=compiled,
    )  # fmt: skip
    theirs = AutoModelForCausalLM.from_config(ours.model.config)
    AttentionInterface.register(PLAIN, sdpa_attention_forward)
    AttentionMaskInterface.register(PLAIN, sdpa_mask)
    theirs.set_attn_implementation(PLAIN)
    trainer = Trainer(theirs, arguments, train_dataset=WindowList(dataset), callbacks=[taking])
    trainer.train()

    pairs, kind = taking.pairs[min(WARM_UP, rounds - 1) :], "compiled" if compiled else "eager"
    tokens = STEPS * plan.tokens_per_step
    rate = tokens / statistics.median(mine for mine, _ in pairs)
    say(f"{kind}: headrace", f"{rate:,.0f} tokens/s")
    say(f"{kind}: transformers.Trainer", f"{tokens / statistics.median(other for _, other in pairs):,.0f} tokens/s")
    ratios = [other / mine for mine, other in pairs]
    say(f"{kind}: speed, headrace / Trainer", spread(ratios), "at least 1.2" if compiled else "at least 1.05")
    peak = measured_flops(torch.device("cpu"), torch.float32, 2.0)
    share = rate * flops_per_token(ours.model, ours.model.config, bench.training.context) / peak
    say(
        f"{kind}: share of the fp32 matmul rate ({peak / 1e9:.0f} GFLOP/s)",
        f"{share:.2f}",
        "at least 0.55" if compiled else "",
    )


def main() -> None:
    """Measure eager, then compiled, or only the given one, in a number of rounds."""
    print(
        "training: tokens a second against transformers.Trainer (GPT-2 of 5.3M parameters, 8 x 256 tokens, fp32)",
        flush=True,
    )
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as name:
        raw_corpora(Path(name, "raw"))
        for compiled in (False, True):
            if not sys.argv[1:] or ("compiled" if compiled else "eager") == sys.argv[1]:
                compare(Path(name), compiled, int(sys.argv[2]) if sys.argv[2:] else ROUNDS)


if __name__ == "__main__":
    main()
