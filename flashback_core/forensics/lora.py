"""Low-rank adapters: a frozen model with small matrices that are trained beside it."""

from __future__ import annotations

import math

from torch import Tensor, nn

__all__ = ["LoraLinear", "add_lora"]


class LoraLinear(nn.Module):
    """A frozen linear layer plus ``lora_B(lora_A(x))``; starts out as the layer itself."""

    def __init__(self, base: nn.Linear, rank: int, dropout: float) -> None:
        """Freeze `base`; the adapter's output matrix starts at 0."""
        super().__init__()
        self.base = base.requires_grad_(False)
        self.lora_A = nn.Linear(base.in_features, rank, bias=False)
        self.lora_B = nn.Linear(rank, base.out_features, bias=False)
        self.dropout = nn.Dropout(dropout)
        nn.init.kaiming_uniform_(self.lora_A.weight, a=math.sqrt(5))
        nn.init.zeros_(self.lora_B.weight)

    def forward(self, x: Tensor) -> Tensor:
        """(…, in) to (…, out)."""
        out: Tensor = self.base(x) + self.lora_B(self.lora_A(self.dropout(x)))
        return out


def add_lora(model: nn.Module, *, rank: int, dropout: float) -> nn.Module:
    """Freeze `model` and put an adapter beside every linear layer of its blocks, in place."""
    model.requires_grad_(False)
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if name.startswith("c_") and isinstance(child, nn.Linear):
                setattr(module, name, LoraLinear(child, rank, dropout))
    return model
