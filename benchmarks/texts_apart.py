"""Cost of attention within documents that share a window, against attention over the whole window.

    python -m benchmarks.texts_apart [TOKENS ...]

A step trains on one row of a window's length on the CPU, or on rows of 16,384 tokens in total on a GPU, in three ways:
attention to all earlier tokens, attention within documents by a mask over all pairs of tokens, and attention within
documents computed separately for each. Documents are as long as the shorter topics of Python's documentation, with four
bytes per token. Each round runs a step of all three; the figures are medians. Both ways of attention within documents
must give the same loss.
"""

import sys
import time
from collections.abc import Callable
from pydoc_data.topics import topics
from statistics import median
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from trainer.models.attention_masks import WITH_MASKS
from trainer.models.documents import APART
from trainer.models.losses import CausalLMLoss
from trainer.models.trial import read_apart
from trainer.training.runtime import prefer_cudnn_attention, start_runtime

ROUNDS, LONGEST, ON_GPU = 5, 8192, 16_384
SIZES: dict[str, Any] = dict(
    vocab_size=8192, hidden_size=256, intermediate_size=688, num_hidden_layers=4, num_attention_heads=8,
    num_key_value_heads=8, max_position_embeddings=8192,
)  # fmt: skip


LARGER = {
    "hidden_size": 1024, "intermediate_size": 2752, "num_hidden_layers": 8, "num_attention_heads": 16,
    "num_key_value_heads": 16,
}  # fmt: skip
"""Sizes of a model that uses a GPU fully."""


def places_of(width: int) -> torch.Tensor:
    """The position of each of a row's tokens in its document, of shape [1, T]."""
    lengths = [len(topics[name].encode()) // 4 for name in sorted(topics) if len(topics[name]) < LONGEST]
    return torch.cat([torch.arange(length) for length in lengths])[None, :width]


def measure(width: int) -> None:
    """Print each way's time per step."""
    torch.manual_seed(0)
    cuda = torch.cuda.is_available()
    device = torch.device("cuda" if cuda else "cpu")
    start_runtime("bf16" if cuda else "fp32")
    model = LlamaForCausalLM(LlamaConfig(**{**SIZES, **(LARGER if cuda else {})}))
    assert read_apart(model, width)
    model.to(device).train()  # type: ignore[arg-type]
    objective = CausalLMLoss(model)
    rows = ON_GPU // width if cuda else 1
    ids, places = torch.randint(8192, (rows, width), device=device), places_of(width).repeat(rows, 1).to(device)

    def step(place: torch.Tensor | None) -> float:
        with torch.autocast("cuda", torch.bfloat16, enabled=cuda):
            loss = objective(ids, position_ids=place)
        loss.backward()
        model.zero_grad()
        return float(loss.detach())

    def apart() -> float:
        model.set_attn_implementation(APART)
        return step(places)

    ways: dict[str, Callable[[], float]] = {
        "all": lambda: step(None),
        "by a mask": lambda: step(places),
        "each by itself": apart,
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    losses: dict[str, float] = {}
    for round_ in range(ROUNDS + 1):
        for name, way in ways.items():
            model.set_attn_implementation(WITH_MASKS)
            way_started = time.perf_counter()
            with prefer_cudnn_attention(device):
                losses[name] = way()
            if cuda:
                torch.cuda.synchronize()
            if round_:  # the first one warms up
                seconds[name].append(time.perf_counter() - way_started)
    assert abs(losses["by a mask"] - losses["each by itself"]) <= 1e-5 * losses["by a mask"] * (1000 if cuda else 1)
    taken = {name: median(each) for name, each in seconds.items()}
    documents = int((places[0] == 0).sum())
    told = ", ".join(f"{name} {value:.3f} s ({value / taken['all']:.2f})" for name, value in taken.items())
    print(f"{rows} x {width:>6,} tokens, {documents:>3} documents each: {told}", flush=True)


if __name__ == "__main__":
    for each in map(int, sys.argv[1:] or ("1024", "2048", "4096", "8192")):
        measure(each)
