"""The loss that models are trained with against the one that their own logits give."""

import subprocess
import sys
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import PreTrainedModel

import trainer.models.losses
from tests.depth import once
from tests.support import NO_DROPOUT, SMALL_MODEL
from tests.tiny_models import new_model, tiny_config
from trainer.common.errors import ConfigError
from trainer.models.losses import (
    IGNORED,
    CausalLMLoss,
    PiecewiseCrossEntropies,
    PiecewiseCrossEntropy,
    has_plain_head,
    next_tokens,
    rows_at_once,
    token_losses,
    token_losses_in_pieces,
)

FAMILIES: dict[str, dict[str, Any]] = {
    "tied": {**SMALL_MODEL, **NO_DROPOUT},
    "untied": tiny_config("llama"),
    "with biases": tiny_config("phi"),
    "scaled down": {**tiny_config("granite"), "logits_scaling": 8.0},
    "scaled up": {**tiny_config("cohere"), "logit_scale": 2.0},
    "capped": {**tiny_config("gemma2"), "final_logit_softcapping": 30.0},
    "with its routers": {**tiny_config("mixtral"), "output_router_logits": True, "router_aux_loss_coef": 0.5},
    "projected": {**tiny_config("opt"), "word_embed_proj_dim": 16, "dropout": 0.0},
}


def make(family: str) -> PreTrainedModel:
    return new_model(dict(FAMILIES[family]), attention="eager")


@pytest.fixture
def windows_BT() -> torch.Tensor:
    return torch.randint(0, 300, (3, 16), generator=torch.Generator().manual_seed(0))


def plain(model: PreTrainedModel, windows_BT: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """The loss that transformers computes from labels, as a sum, and its gradients."""
    model.zero_grad()
    loss = model(input_ids=windows_BT, labels=windows_BT).loss * windows_BT.shape[0] * (windows_BT.shape[1] - 1)
    loss.backward()
    return loss.detach(), {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def ours(objective: CausalLMLoss, windows_BT: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    model = objective.train().model
    model.zero_grad()
    loss = objective(windows_BT)
    loss.backward()
    return loss.detach(), {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def assert_same(
    found: tuple[torch.Tensor, dict[str, torch.Tensor]],
    expected: tuple[torch.Tensor, dict[str, torch.Tensor]],
    tolerance: float = 1e-4,
) -> None:
    torch.testing.assert_close(found[0], expected[0], rtol=1e-5, atol=0.0)
    assert found[1].keys() == expected[1].keys()
    for name, gradient in expected[1].items():
        torch.testing.assert_close(found[1][name], gradient, rtol=tolerance, atol=tolerance, msg=name)


@pytest.mark.parametrize(("scale", "tolerance"), [(1.0, 1e-4), (20.0, 1e-3)], ids=["new", "has learnt to be sure"])
@pytest.mark.parametrize("family", FAMILIES)
def test_loss_and_gradients_are_those_of_the_models_own_logits(
    family: str, scale: float, tolerance: float, windows_BT: torch.Tensor
) -> None:
    model = make(family)
    objective = CausalLMLoss(model)
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(scale)
    assert_same(ours(objective, windows_BT), plain(model, windows_BT), tolerance)


@pytest.mark.parametrize("family", ["tied", "capped", "projected"])
def test_nothing_is_added_where_the_model_adds_nothing(family: str) -> None:
    assert not CausalLMLoss(make(family)).adds


def test_a_loss_of_another_kind_than_the_next_tokens_is_refused() -> None:
    model = new_model({**tiny_config("prophetnet"), "pad_token_id": 300, "max_position_embeddings": 400})
    with pytest.raises(ConfigError, match="'prophetnet' model with a loss other than next-token prediction"):
        CausalLMLoss(model)


@pytest.mark.parametrize("rows", [1, 7, 48, 1000])
def test_the_size_of_the_pieces_changes_nothing(
    rows: int, windows_BT: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make("tied")
    expected = plain(model, windows_BT)
    monkeypatch.setitem(trainer.models.losses.LOGITS_AT_ONCE, "cpu", rows * 320)
    assert_same(ours(CausalLMLoss(model), windows_BT), expected)


class Products(TorchDispatchMode):
    """Notes the most rows that a matrix product with so many columns has."""

    def __init__(self, columns: int) -> None:
        super().__init__()
        self.columns, self.rows = columns, 0

    def __torch_dispatch__(self, call: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = call(*args, **(kwargs or {}))
        if call is torch.ops.aten.mm.default and made.shape[1] == self.columns:
            self.rows = max(self.rows, len(made))
        return made


@pytest.mark.parametrize("family", FAMILIES)
def test_losses_in_pieces_are_those_of_all_logits(
    family: str, windows_BT: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, labels = make(family).eval(), next_tokens(windows_BT)
    expected = token_losses(model, windows_BT, labels)
    is_plain = has_plain_head(model)
    columns = len(model.get_output_embeddings().weight)
    monkeypatch.setitem(trainer.models.losses.LOGITS_AT_ONCE, "cpu", 7 * columns)
    with Products(columns) as logits:
        found = token_losses_in_pieces(model, windows_BT, labels)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    assert (logits.rows == 7) == is_plain, "all logits are held only where the head is not plain"


def test_the_gradient_of_a_head_in_half_precision_is_scaled_before_it_is_rounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows, size, targets = 4096, 2.0**5, 2.0**12
    hidden = torch.full((rows, 2), size, dtype=torch.float16, requires_grad=True)
    weight = torch.zeros(4, 2, dtype=torch.float16, requires_grad=True)
    monkeypatch.setattr(trainer.models.losses, "LOGITS_AT_ONCE", {"cpu": 1024})
    loss = PiecewiseCrossEntropy.apply(hidden, weight, torch.zeros(rows, dtype=torch.long))
    (loss / targets).backward()
    assert rows * size * 0.75 > torch.finfo(torch.float16).max, "as a sum it is beyond what a half can hold"
    assert weight.grad is not None
    assert torch.equal(weight.grad, torch.tensor([-0.75, 0.25, 0.25, 0.25])[:, None].expand(4, 2) * size)


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # torch's own, as it compiles
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("kind", once(torch.float32, torch.bfloat16))
@pytest.mark.parametrize("learns", [False, True])
def test_gradients_in_pieces_are_those_of_all_logits_and_a_frozen_head_gets_none(
    learns: bool, kind: torch.dtype, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer.models.losses, "LOGITS_AT_ONCE", {"cpu": 7 * 50})
    numbers = torch.Generator().manual_seed(0)
    states = torch.randn(40, 8, generator=numbers)
    matrix, weights = torch.randn(50, 8, generator=numbers), torch.rand(40, generator=numbers)
    labels = torch.randint(0, 50, (40,), generator=numbers)
    labels[::5] = IGNORED

    def gradients(loss_of: Any) -> list[torch.Tensor | None]:
        hidden, head = states.clone().requires_grad_(), matrix.clone().requires_grad_(learns)
        if compiled:
            torch.compiler.reset()
            loss_of = torch.compile(loss_of, fullgraph=True, backend="aot_eager")
        with torch.autocast("cpu", kind, enabled=kind != torch.float32):
            loss_of(hidden, head).backward()
        return [hidden.grad, head.grad]

    def each(hidden: torch.Tensor, head: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy((hidden @ head.T).float(), labels, ignore_index=IGNORED, reduction="none")

    def in_pieces(hidden: torch.Tensor, head: torch.Tensor) -> torch.Tensor:
        losses: torch.Tensor = PiecewiseCrossEntropies.apply(hidden, head, labels)
        return losses

    exact = {"rtol": 1e-5, "atol": 1e-5} if kind == torch.float32 else {"rtol": 0.05, "atol": 0.05}
    for expected, found in (
        (lambda h, w: each(h, w).sum(), lambda h, w: PiecewiseCrossEntropy.apply(h, w, labels)),
        (lambda h, w: (each(h, w) * weights).sum(), lambda h, w: (in_pieces(h, w) * weights).sum()),
    ):
        wanted, made = gradients(expected), gradients(found)
        assert (made[1] is not None) == learns
        torch.testing.assert_close([x for x in made if x is not None], [x for x in wanted if x is not None], **exact)


PEAKS = """
import resource, sys, threading, time, torch
from transformers import AutoModelForCausalLM, LlamaConfig
from trainer.models.losses import has_plain_head, loss_in_pieces, next_tokens, token_losses_in_pieces

torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=60_000, hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4
)
model, ids = AutoModelForCausalLM.from_config(config).train(), torch.randint(0, 60_000, (64, 64))
has_plain_head(model)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for _ in range(2):
    if sys.argv[1] == "sum":
        loss_in_pieces(model, ids, next_tokens(ids), None).backward()
    else:
        (token_losses_in_pieces(model, ids, next_tokens(ids)) * torch.rand(64 * 64)).sum().backward()
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


@pytest.mark.deep
@pytest.mark.parametrize("loss", ["sum", "each"])
def test_large_vocabularies_leave_no_holes_in_memory(loss: str) -> None:
    ended = subprocess.run([sys.executable, "-c", PEAKS, loss], capture_output=True, text=True, check=True)
    # Gradients and logits take about 200 MiB; with holes it was 600 to 2,300.
    assert int(ended.stdout) < 450


def test_while_compiling_there_are_few_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = torch.device("cpu")
    assert rows_at_once(10**6, 2**15, cpu) == 64
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert rows_at_once(10**6, 2**15, cpu) == 62_500
    assert rows_at_once(100, 2**15, cpu) == 64


def test_ignored_labels_have_no_loss_and_change_no_other(windows_BT: torch.Tensor) -> None:
    model = make("tied").eval()
    labels = next_tokens(windows_BT)
    whole = token_losses(model, windows_BT, labels).view(3, 16)
    assert torch.equal(whole[:, -1], torch.zeros(3))
    labels[:, 10:] = -100
    part = token_losses(model, windows_BT, labels).view(3, 16)
    assert torch.equal(part[:, 10:], torch.zeros(3, 6))
    torch.testing.assert_close(part[:, :10], whole[:, :10])


def test_token_losses_are_negative_log_probabilities(windows_BT: torch.Tensor) -> None:
    model = make("tied").eval()
    with torch.no_grad():
        losses = token_losses(model, windows_BT, next_tokens(windows_BT)).view(3, 16)
        log_p = F.log_softmax(model(input_ids=windows_BT).logits, dim=-1)
    for row in range(3):
        for place in range(15):
            assert losses[row, place].item() == pytest.approx(
                -log_p[row, place, windows_BT[row, place + 1]].item(), rel=1e-4
            )
