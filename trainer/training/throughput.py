"""Training speed: tokens per second, and the share of the device's peak rate (model FLOPs utilisation)."""

import re
import time

import torch
from torch import nn
from transformers import PretrainedConfig

from trainer.models.adapters import used_parameters
from trainer.models.quantized import weights_in

MEASURED_SIZE = 1024

PEAK_FLOPS = {"NVIDIA A100": (312e12, 19.5e12), "NVIDIA H100": (989e12, 67e12), "NVIDIA H200": (989e12, 67e12)}
"""Dense peak rates in half precision and in fp32 from NVIDIA's data sheets (SXM), in operations per second."""

SLOWER = re.compile("PCIe|NVL|MIG")
"""Device names with one of these are other models or parts of a device; their peak is measured."""


NUMBER_OF_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
"""The names by which model families set the number of experts in a layer that a router chooses from."""


def flops_per_token(model: nn.Module, config: PretrainedConfig, context: int) -> float:
    """Floating-point operations to train on one token: 6 N + 12 L H Q T (Chowdhery et al., PaLM, 2022, appendix B).

    N counts parameters used in multiplications (a tied output matrix, but not embeddings that are only looked up), and
    of experts those that a router chooses for a token. Frozen ones, beside an adapter, count 4 N: they have no gradient
    of their own.
    """
    text = config.get_text_config()
    output = getattr(model, "get_output_embeddings", lambda: None)()
    lookups = {module.weight for module in model.modules() if isinstance(module, nn.Embedding)}
    multiplied = set(used_parameters(model)) - (lookups - {getattr(output, "weight", None)})
    routed, share = {each for name, each in model.named_parameters() if ".experts." in name}, _chosen_share(text)
    count = sum(
        (6.0 if each.requires_grad else 4.0) * weights_in(each) * (share if each in routed else 1.0)
        for each in multiplied
    )
    layers, width = getattr(text, "num_hidden_layers", 0), getattr(text, "hidden_size", 0)
    return count + 12.0 * layers * width * context


def _chosen_share(config: PretrainedConfig) -> float:
    """The share of a layer's experts that a router chooses for a token; 1 if the configuration does not say."""
    experts = next((number for name in NUMBER_OF_EXPERTS if (number := getattr(config, name, None))), None)
    chosen = getattr(config, "num_experts_per_tok", None)
    return chosen / experts if experts and chosen else 1.0


def peak_flops(device: torch.device, precision: str) -> float:
    """Peak operations per second of the device: from its data sheet, else measured with a matrix product."""
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
        for known, (half, full) in PEAK_FLOPS.items():
            if name.startswith(known) and not SLOWER.search(name):
                return full if precision == "fp32" else half
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[precision]
    return measured_flops(device, dtype)


def measured_flops(device: torch.device, dtype: torch.dtype, seconds: float = 0.1) -> float:
    """The best rate of a square matrix product within `seconds`."""
    size = MEASURED_SIZE if device.type == "cpu" else 8 * MEASURED_SIZE
    left, right = (torch.ones(size, size, device=device, dtype=dtype) for _ in range(2))
    best, end = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end or best == float("inf"):
        started = time.perf_counter()
        torch.mm(left, right)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        best = min(best, time.perf_counter() - started)
    return 2.0 * size**3 / best


class Meter:
    """Collects figures between two metric records. Losses stay on the device until they are read."""

    def __init__(self, device: torch.device, flops_per_token: float, peak: float) -> None:
        self._flops_per_token, self._peak = flops_per_token, peak
        self._device = device
        self.reset()

    def reset(self) -> None:
        """Start a new interval."""
        self.loss = torch.zeros((), device=self._device)
        self.attempts = self.steps = self._tokens = 0
        self._waited = self._paused = 0.0
        self._started = time.perf_counter()

    def add(self, loss: torch.Tensor, tokens: int, waited: float, skipped: bool = False) -> None:
        """Count a step with its tokens and the seconds it waited for data. A skipped step adds no loss."""
        if not skipped:
            self.loss += loss
            self.steps += 1
        self.attempts += 1
        self._tokens += tokens
        self._waited += waited

    def pause(self, seconds: float) -> None:
        """Exclude time that was not spent on steps."""
        self._paused += seconds

    def read(self) -> dict[str, float]:
        """The interval's figures. Waits for the device."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        seconds = time.perf_counter() - self._started - self._paused
        rate = self._tokens / seconds
        return {
            "tokens_per_second": rate,
            "mfu": rate * self._flops_per_token / self._peak,
            "step_seconds": seconds / self.attempts,
            "data_wait_seconds": self._waited / self.attempts,
        }
