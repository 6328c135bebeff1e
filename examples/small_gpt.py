"""A small transformer on the standard library's own source text, for the examples.

Plain PyTorch and nothing of flashback: this is what your own training looks like.
"""

from __future__ import annotations

import sysconfig
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

CONTEXT = 32


def corpus() -> torch.Tensor:
    """Bytes of some source files that come with Python, as one tensor of int64."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    files = sorted(folder.glob("*.py"))[:60]
    return torch.frombuffer(bytearray(b"".join(f.read_bytes() for f in files)), dtype=torch.uint8)


def batch(data: torch.Tensor, step: int, size: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    """Sample ids and windows of bytes for `step`; the same step always draws the same batch."""
    generator = torch.Generator().manual_seed(step)
    ids = torch.randint(len(data) - CONTEXT - 1, (size,), generator=generator)
    windows = torch.stack([data[i : i + CONTEXT + 1] for i in ids]).long()
    return ids, windows


class Block(nn.Module):
    """Attention and a feed-forward layer, each with its norm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = nn.ModuleDict(
            {"c_attn": nn.Linear(width, 3 * width), "c_proj": nn.Linear(width, width)}
        )
        self.mlp = nn.ModuleDict(
            {"c_fc": nn.Linear(width, 4 * width), "c_proj": nn.Linear(4 * width, width)}
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Shape (batch, time, width) in and out."""
        b, t, width = x.shape
        qkv = self.attn["c_attn"](self.ln_1(x)).view(b, t, 3, self.heads, -1)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
        x = x + self.attn["c_proj"](y.reshape(b, t, width))
        return x + self.mlp["c_proj"](F.gelu(self.mlp["c_fc"](self.ln_2(x))))


class SmallGPT(nn.Module):
    """About 120 000 parameters; bytes in, logits of the next byte out."""

    def __init__(self, width: int = 48, depth: int = 3, heads: int = 4) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(256, width), nn.Embedding(CONTEXT, width)
        self.h = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.ln_f = nn.LayerNorm(width)
        self.lm_head = nn.Linear(width, 256, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Shape (batch, time) in, (batch, time, 256) out."""
        x = self.wte(tokens) + self.wpe.weight[: tokens.shape[1]]
        for block in self.h:
            x = block(x)
        return self.lm_head(self.ln_f(x))

    def loss(self, windows: torch.Tensor) -> torch.Tensor:
        """Mean cross-entropy of the next byte."""
        logits = self(windows[:, :-1])
        return F.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())
