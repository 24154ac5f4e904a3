"""Plain GPT-2 in PyTorch as in nanoGPT: no biases, no masks, and PyTorch's default attention kernel."""

import torch
from torch import nn
from torch.nn import functional as F
from transformers import PretrainedConfig


class Block(nn.Module):
    """Causal attention, then two layers, each with a residual connection."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width, bias=False), nn.LayerNorm(width, bias=False)
        self.qkv, self.projection = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x_BTC: torch.Tensor) -> torch.Tensor:
        rows, length, width = x_BTC.shape
        parts = self.qkv(self.norm_1(x_BTC)).split(width, dim=2)
        query, key, value = (each.view(rows, length, self.heads, -1).transpose(1, 2) for each in parts)
        seen = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x_BTC = x_BTC + self.projection(seen.transpose(1, 2).reshape(rows, length, width))
        changed: torch.Tensor = x_BTC + self.down(F.gelu(self.up(self.norm_2(x_BTC))))
        return changed


class PlainGPT2(nn.Module):
    """The model, with the mean loss of the next token."""

    def __init__(self, config: PretrainedConfig) -> None:
        super().__init__()
        self.tokens = nn.Embedding(config.vocab_size, config.n_embd)
        self.places = nn.Embedding(config.n_positions, config.n_embd)
        self.blocks = nn.ModuleList(Block(config.n_embd, config.n_head) for _ in range(config.n_layer))
        self.norm = nn.LayerNorm(config.n_embd, bias=False)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Shape [B, T] -> a scalar, in nats."""
        places = torch.arange(input_ids.shape[1], device=input_ids.device)
        x_BTC = self.tokens(input_ids) + self.places(places)
        for block in self.blocks:
            x_BTC = block(x_BTC)
        logits = F.linear(self.norm(x_BTC), self.tokens.weight)
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), input_ids[:, 1:].flatten())
