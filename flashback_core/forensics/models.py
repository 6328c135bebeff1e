"""The small models that the forensics runs train."""

from __future__ import annotations

import itertools
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["GPT", "MLP", "CausalBlock", "CharLSTM", "ConvNet", "Denoiser", "VisionTransformer"]

BYTES = 256


class CausalSelfAttention(nn.Module):
    """Multi-head attention over what came before; one matrix makes queries, keys and values."""

    def __init__(self, width: int, heads: int, *, dropout: float, is_causal: bool = True) -> None:
        """Make the layers."""
        super().__init__()
        self.heads, self.is_causal = heads, is_causal
        self.c_attn = nn.Linear(width, 3 * width)
        self.c_proj = nn.Linear(width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, time, width) to the same."""
        batch, time, width = x.shape
        q, k, v = self.c_attn(x).view(batch, time, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.is_causal)
        y = y.transpose(1, 2).reshape(batch, time, width)
        out: Tensor = self.dropout(self.c_proj(y))
        return out


class FeedForward(nn.Module):
    """Two linear layers with a GELU between, four times as wide inside."""

    def __init__(self, width: int, *, dropout: float) -> None:
        """Make the layers."""
        super().__init__()
        self.c_fc = nn.Linear(width, 4 * width)
        self.c_proj = nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """(…, width) to the same."""
        out: Tensor = self.dropout(self.c_proj(F.gelu(self.c_fc(x))))
        return out


class MixtureOfExperts(nn.Module):
    """Each token goes to the best of a few experts; `balance` is the load-balancing loss."""

    def __init__(self, width: int, *, experts: int, dropout: float) -> None:
        """Make the layers."""
        super().__init__()
        self.router = nn.Linear(width, experts)
        self.experts = nn.ModuleList(
            FeedForward(width // 2, dropout=dropout) for _ in range(experts)
        )
        self.down = nn.Linear(width, width // 2)
        self.up = nn.Linear(width // 2, width)
        self.balance = torch.zeros(())

    def forward(self, x: Tensor) -> Tensor:
        """(batch, time, width) to the same."""
        weights = self.router(x).float().softmax(-1)
        best, chosen = weights.max(-1)
        n = len(self.experts)
        share = torch.stack([(chosen == i).float().mean() for i in range(n)])
        self.balance = n * (share * weights.mean((0, 1))).sum()
        h = self.down(x)
        out = torch.zeros_like(h)
        for i, expert in enumerate(self.experts):
            picked = (chosen == i).unsqueeze(-1)
            out = torch.where(picked, expert(h).to(out.dtype), out)
        scaled: Tensor = self.up(out * best.unsqueeze(-1).to(out.dtype))
        return scaled


class CausalBlock(nn.Module):
    """Attention and a feed-forward part, each behind a layer norm and beside a shortcut."""

    def __init__(
        self, width: int, heads: int, *, dropout: float, is_causal: bool = True, experts: int = 0
    ) -> None:
        """Make the layers."""
        super().__init__()
        self.ln_1 = nn.LayerNorm(width)
        self.attn = CausalSelfAttention(width, heads, dropout=dropout, is_causal=is_causal)
        self.ln_2 = nn.LayerNorm(width)
        self.mlp: nn.Module = (
            MixtureOfExperts(width, experts=experts, dropout=dropout)
            if experts
            else FeedForward(width, dropout=dropout)
        )

    def forward(self, x: Tensor) -> Tensor:
        """(batch, time, width) to the same."""
        x = x + self.attn(self.ln_1(x))
        out: Tensor = x + self.mlp(self.ln_2(x))
        return out


class GPT(nn.Module):
    """A byte-level transformer with the parameter names of nanoGPT."""

    def __init__(
        self, *, width: int, depth: int, heads: int, context: int, dropout: float, experts: int = 0
    ) -> None:
        """Make the layers."""
        super().__init__()
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(BYTES, width),
                "wpe": nn.Embedding(context, width),
                "drop": nn.Dropout(dropout),
                "h": nn.ModuleList(
                    CausalBlock(width, heads, dropout=dropout, experts=experts)
                    for _ in range(depth)
                ),
                "ln_f": nn.LayerNorm(width),
            }
        )
        self.lm_head = nn.Linear(width, BYTES, bias=False)
        init_normal(self, depth)

    def forward(self, x: Tensor) -> Tensor:
        """Tokens (batch, time) to logits (batch, time, 256)."""
        parts = self.transformer
        position = torch.arange(x.shape[1], device=x.device)
        h = parts["drop"](parts["wte"](x) + parts["wpe"](position))
        for block in parts["h"]:  # type: ignore[attr-defined]  # a ModuleList, typed as Module
            h = block(h)
        logits: Tensor = self.lm_head(parts["ln_f"](h))
        return logits

    def extra_loss(self) -> Tensor:
        """Load-balancing loss of the experts; 0 without."""
        found = [m.balance for m in self.modules() if isinstance(m, MixtureOfExperts)]
        return 0.01 * torch.stack(found).sum() if found else torch.zeros(())


def init_normal(model: nn.Module, depth: int) -> None:
    """Matrices N(0, 0.02), those that write to the residual stream smaller with depth."""
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1:
            is_residual = name.endswith("c_proj.weight")
            nn.init.normal_(parameter, 0.0, 0.02 / math.sqrt(2 * depth) if is_residual else 0.02)
        elif name.endswith("bias"):
            nn.init.zeros_(parameter)


class MLP(nn.Module):
    """Fully connected layers on flattened images."""

    def __init__(self, *, width: int, depth: int, dropout: float) -> None:
        """Make the layers."""
        super().__init__()
        sizes = [64, *[width] * depth]
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in itertools.pairwise(sizes))
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Images (batch, 8, 8) to logits (batch, 10)."""
        h = x.flatten(1)
        for layer in self.layers:
            h = self.dropout(F.relu(layer(h)))
        logits: Tensor = self.head(h)
        return logits


class ConvNet(nn.Module):
    """Three 3×3 convolutions with batch norm, mean pooling and a linear head."""

    def __init__(self, *, width: int, dropout: float) -> None:
        """Make the layers."""
        super().__init__()
        sizes = [1, width, 2 * width, 2 * width]
        self.convs = nn.ModuleList(
            nn.Conv2d(a, b, 3, padding=1, bias=False) for a, b in itertools.pairwise(sizes)
        )
        self.norms = nn.ModuleList(nn.BatchNorm2d(b) for b in sizes[1:])
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(2 * width, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Images (batch, 8, 8) to logits (batch, 10)."""
        h = x.unsqueeze(1)
        for i, (conv, norm) in enumerate(zip(self.convs, self.norms, strict=True)):
            h = F.relu(norm(conv(h)))
            h = F.max_pool2d(h, 2) if i == 0 else h
        logits: Tensor = self.head(self.dropout(h.mean((2, 3))))
        return logits


class CharLSTM(nn.Module):
    """Two LSTM layers over bytes."""

    def __init__(self, *, width: int, dropout: float) -> None:
        """Make the layers."""
        super().__init__()
        self.embed = nn.Embedding(BYTES, width // 2)
        self.rnn = nn.LSTM(width // 2, width, num_layers=2, batch_first=True)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(width, BYTES)

    def forward(self, x: Tensor) -> Tensor:
        """Tokens (batch, time) to logits (batch, time, 256)."""
        h, _ = self.rnn(self.embed(x))
        logits: Tensor = self.head(self.dropout(h))
        return logits


class VisionTransformer(nn.Module):
    """Transformer over the sixteen 2×2 patches of an 8×8 image."""

    def __init__(self, *, width: int, depth: int, heads: int, dropout: float) -> None:
        """Make the layers."""
        super().__init__()
        self.patch_embed = nn.Linear(4, width)
        self.pos_embed = nn.Parameter(torch.zeros(1, 16, width))
        self.blocks = nn.ModuleList(
            CausalBlock(width, heads, dropout=dropout, is_causal=False) for _ in range(depth)
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 10)
        init_normal(self, depth)

    def forward(self, x: Tensor) -> Tensor:
        """Images (batch, 8, 8) to logits (batch, 10)."""
        patches = x.unfold(1, 2, 2).unfold(2, 2, 2).reshape(len(x), 16, 4)
        h = self.patch_embed(patches) + self.pos_embed
        for block in self.blocks:
            h = block(h)
        logits: Tensor = self.head(self.norm(h).mean(1))
        return logits


class Denoiser(nn.Module):
    """Predicts the noise in a noisy image from the image and its noise level."""

    def __init__(self, *, width: int, depth: int, dropout: float) -> None:
        """Make the layers."""
        super().__init__()
        self.time_embed = nn.Linear(32, width)
        self.stem = nn.Linear(64, width)
        self.blocks = nn.ModuleList(FeedForward(width, dropout=dropout) for _ in range(depth))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(depth))
        self.head = nn.Linear(width, 64)

    def forward(self, x: Tensor, level: Tensor) -> Tensor:
        """Noisy images (batch, 8, 8) and levels (batch,) in [0, 1] to noise (batch, 8, 8)."""
        frequencies = torch.exp(torch.linspace(0.0, 5.0, 16))
        angles = level[:, None] * frequencies
        time = self.time_embed(torch.cat([angles.sin(), angles.cos()], 1))
        h = self.stem(x.flatten(1))
        for block, norm in zip(self.blocks, self.norms, strict=True):
            h = h + block(norm(h + time))
        noise: Tensor = self.head(h).view(x.shape)
        return noise
