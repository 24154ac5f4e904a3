"""Attention of texts that share a row, each by itself: what SDPA gives with a mask, for any type and family."""

import pytest
import torch
from torch.nn import functional as F
from transformers import PreTrainedModel

from tests.families import Case, make
from trainer.models.attention_masks import masks_made
from trainer.models.documents import APART, attend_apart, attend_at_once, attend_each, positions, text_ends, text_mask
from trainer.models.losses import CausalLMLoss
from trainer.models.trial import read_apart, reading_apart

LENGTHS = ((10, 1, 30, 55), (96,), (1, 94, 1), (40, 56))
WIDTH, HEADS, SIZE = 96, 4, 16
PLACES = torch.stack([torch.cat([torch.arange(length) for length in row]) for row in LENGTHS])


def states(dtype: torch.dtype = torch.float32, heads: int = HEADS) -> torch.Tensor:
    return torch.randn(len(LENGTHS), heads, WIDTH, SIZE).to(dtype).requires_grad_()


def test_a_text_begins_with_its_first_position_and_with_its_row() -> None:
    ends = text_ends(PLACES)
    assert ends.dtype == torch.int32
    assert ends.diff().tolist() == [length for row in LENGTHS for length in row]
    assert text_ends(torch.tensor([[5, 6], [7, 0]])).tolist() == [0, 2, 3, 4], "a row that begins within a text"


@pytest.mark.parametrize(("dtype", "rounding"), [(torch.float32, 2e-5), (torch.bfloat16, 0.1), (torch.float16, 0.02)])
def test_it_gives_what_sdpa_gives_with_a_mask_and_its_gradients(dtype: torch.dtype, rounding: float) -> None:
    torch.manual_seed(0)
    inputs, ends = [states(dtype) for _ in range(3)], text_ends(PLACES)
    mask = text_mask(ends, inputs[0])
    for row, lengths in enumerate(LENGTHS):
        blocks = torch.block_diag(*(torch.ones(length, length) for length in lengths)).tril().bool()
        assert torch.equal(mask[row, 0], blocks)
    masked = F.scaled_dot_product_attention(*inputs, attn_mask=mask, scale=0.3)
    apart = attend_each(*inputs, ends, 0.3)[0]
    assert torch.allclose(masked, apart, atol=rounding, rtol=0)
    upstream = torch.randn_like(masked)
    expected, found = (torch.autograd.grad(each, inputs, upstream) for each in (masked, apart))
    for one, other in zip(expected, found, strict=True):
        assert torch.allclose(one, other, atol=rounding, rtol=0)


def test_the_operation_is_one_that_torch_can_compile_and_differentiate() -> None:
    torch.library.opcheck(attend_each, (*(states() for _ in range(3)), text_ends(PLACES), 0.25))


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of a way to look at what the compiler reads
def test_the_compiler_reads_all_of_what_a_gpu_computes() -> None:
    query, key = states(torch.bfloat16), states(torch.bfloat16, heads=2)
    graph, _ = torch._dynamo.export(attend_at_once)(query, key, key, text_ends(PLACES), 0.3)
    assert [node.target for node in graph.graph.nodes if "varlen_attn" in str(node.target)]


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_heads_that_share_keys_and_dropout(dropout: float) -> None:
    torch.manual_seed(0)
    query, key, value, ends = states(), states(heads=2), states(heads=2), text_ends(PLACES)
    torch.manual_seed(1)
    found, _ = attend_apart(torch.nn.Module(), query, key, value, None, dropout=dropout, cu_seq_lens_q=ends)
    torch.manual_seed(1)
    expected = F.scaled_dot_product_attention(
        query, key, value, attn_mask=text_mask(ends, query), dropout_p=dropout, enable_gqa=True
    )
    assert torch.allclose(found, expected.transpose(1, 2), atol=2e-5)


def test_what_it_cannot_take_is_refused() -> None:
    inputs = [states() for _ in range(3)]
    with pytest.raises(ValueError, match="supports no mask, bias or cap"):
        attend_apart(
            torch.nn.Module(), *inputs, text_mask(text_ends(PLACES), inputs[0]), cu_seq_lens_q=text_ends(PLACES)
        )


def losses(model: PreTrainedModel, ids: torch.Tensor, places: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The loss of rows of several texts, and its gradient to the embeddings."""
    loss = CausalLMLoss(model)(ids, position_ids=places)
    (gradient,) = torch.autograd.grad(loss, [model.get_input_embeddings().weight])
    return loss, gradient


@pytest.mark.parametrize("family", ["gpt2", "llama", "olmo2", "cohere", "phi3", "glm", "gpt_neox", "qwen2", "qwen3"])
def test_a_family_that_attends_to_each_text_by_itself_gives_the_same_losses_and_gradients(family: str) -> None:
    settings = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0) if family == "gpt2" else {}
    model = make(Case(family, settings)).train()
    ids = torch.randint(5, 60, (2, 24))
    places = torch.stack([torch.cat([torch.arange(length) for length in row]) for row in ((7, 17), (1, 11, 12))])
    masked = losses(model, ids, places)
    assert read_apart(model, 24) and model.config._attn_implementation == APART and model.training
    assert "cu_seq_lens_q" in positions(model, places)
    for one, other in zip(masked, losses(model, ids, places), strict=True):
        assert torch.allclose(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("case", [Case("mistral", {"sliding_window": 4}), Case("gemma3_text", {}), Case("gpt2", {})])
def test_windows_that_slide_and_dropped_attention_keep_their_masks(case: Case) -> None:
    model = make(case)
    before = model.config._attn_implementation
    assert not read_apart(model, 24)
    assert model.config._attn_implementation == before and "cu_seq_lens_q" not in positions(model, PLACES)


@pytest.mark.parametrize("family", ["mistral", "qwen3", "phi3"])
def test_a_window_that_slides_over_more_than_the_trial_reads_keeps_its_mask(family: str) -> None:
    wide = {"max_position_embeddings": 256, "sliding_window": 96}
    settings = (
        {**wide, "layer_types": ["sliding_attention", "full_attention"], "use_sliding_window": True}
        if family == "qwen3"
        else wide
    )
    model = make(Case(family, settings))
    assert not read_apart(model, 256), "rows are longer than the window"
    assert read_apart(model, 64), "they are not"


def test_rows_that_are_filled_up_on_the_left_are_masked_in_a_block() -> None:
    model = make(Case("llama", {})).eval()
    ids, mask = torch.randint(5, 60, (1, 12)), torch.ones(1, 12, dtype=torch.int64)
    mask[:, :4] = 0
    expected = model(input_ids=ids[:, 4:]).logits
    with reading_apart(model, 24):
        assert model.config._attn_implementation == APART
        with masks_made(model):
            found = model(input_ids=ids, attention_mask=mask, position_ids=(mask.cumsum(1) - 1).clamp(min=0)).logits
        assert model.config._attn_implementation == APART
    assert model.config._attn_implementation == "sdpa"
    assert torch.allclose(found[:, 4:], expected, atol=1e-5)


@pytest.mark.deep
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own compiler
def test_compiled_it_learns_the_same_of_texts_of_any_length() -> None:
    model = make(Case("llama", {})).train()
    assert read_apart(model, 24)
    objective = CausalLMLoss(model)
    torch.compiler.reset()
    torch._dynamo.config.capture_dynamic_output_shape_ops = True
    for lengths in ((7, 17), (12, 12), (3, 4, 17), (24,), (1, 2, 3, 4, 14)):
        ids, places = torch.randint(5, 60, (2, 24)), torch.cat([torch.arange(each) for each in lengths]).repeat(2, 1)
        found = []
        for compiled in (False, True):
            if compiled:
                objective.compile(fullgraph=True)
            with torch.compiler.set_stance("default" if compiled else "force_eager"):
                loss = objective(ids, position_ids=places)
                found.append((loss, *torch.autograd.grad(loss, [model.get_input_embeddings().weight])))
        for one, other in zip(*found, strict=True):
            assert torch.allclose(one, other, rtol=1e-5, atol=1e-5)
