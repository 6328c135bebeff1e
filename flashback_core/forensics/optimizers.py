"""The optimizers of the forensics runs: torch's own, Lion, and Muon with AdamW beside it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from flashback_core.faults.places import is_embedding

__all__ = ["LEARNING_RATES", "Lion", "MuonWithAdamW", "make_optimizer"]

LEARNING_RATES = {
    "adamw": 3e-3,
    "sgdm": 0.1,
    "rmsprop": 1e-3,
    "adafactor": 3e-2,
    "lion": 3e-4,
    "muon": 2e-2,
}
"""Usual learning rate by optimizer."""


class Lion(Optimizer):
    """Sign of an interpolated momentum (Chen et al. 2023, arXiv:2302.06675)."""

    def __init__(
        self,
        params: Any,
        lr: float = 3e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
    ) -> None:
        """As `torch.optim.AdamW`; the learning rate is usually ten times smaller."""
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]  # torch overloads it
        """One update."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, group)
        return loss

    def _update(self, parameter: Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            state["exp_avg"] = torch.zeros_like(parameter)
        momentum, (beta1, beta2) = state["exp_avg"], group["betas"]
        direction = (momentum * beta1 + parameter.grad * (1 - beta1)).sign_()
        parameter.mul_(1 - group["lr"] * group["weight_decay"])
        parameter.add_(direction, alpha=-group["lr"])
        momentum.lerp_(parameter.grad, 1 - beta2)


class MuonWithAdamW(Optimizer):
    """`torch.optim.Muon` for the matrices of the body, `torch.optim.AdamW` for all else.

    One optimizer to the loop: the groups and the state of both are its own.
    """

    def __init__(
        self, matrices: list[Tensor], others: list[Tensor], *, lr: float, weight_decay: float
    ) -> None:
        """`lr` is Muon's; AdamW gets 0.15 of it."""
        self._parts: list[Optimizer] = [
            torch.optim.Muon(matrices, lr=lr, weight_decay=weight_decay),
            torch.optim.AdamW(others, lr=lr * 0.15, betas=(0.9, 0.99), weight_decay=weight_decay),
        ]
        super().__init__([*matrices, *others], {})
        self.param_groups = [group for part in self._parts for group in part.param_groups]
        self._share()

    def _share(self) -> None:
        for part, group in zip(self._parts, self.param_groups, strict=True):
            part.param_groups, part.state = [group], self.state

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take over loaded groups and state, for both parts."""
        super().__setstate__(state)
        self._share()

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]  # torch overloads it
        """One update of both."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for part in self._parts:
            part.step()
        return loss


def make_optimizer(
    name: str, model: nn.Module, *, lr: float, weight_decay: float, beta2: float
) -> Optimizer:
    """An optimizer for the trained parameters of `model`.

    Args:
        name: One of `LEARNING_RATES`.
        model: The model.
        lr: Learning rate.
        weight_decay: Applied to matrices only, as is usual.
        beta2: Decay of the second moment, for optimizers that have one.

    Raises:
        ValueError: If there is no such optimizer.
    """
    if name not in LEARNING_RATES:
        msg = f"optimizer {name!r} is not one of {', '.join(LEARNING_RATES)}"
        raise ValueError(msg)
    if name == "muon":
        return _muon(model, lr, weight_decay)
    trained = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in trained if p.dim() > 1], "weight_decay": weight_decay},
        {"params": [p for p in trained if p.dim() <= 1], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    if name == "adamw":
        return torch.optim.AdamW(groups, lr=lr, betas=(0.9, beta2))
    if name == "sgdm":
        return torch.optim.SGD(groups, lr=lr, momentum=0.9)
    if name == "rmsprop":
        return torch.optim.RMSprop(groups, lr=lr, alpha=beta2)
    if name == "adafactor":
        return torch.optim.Adafactor(groups, lr=lr)
    return Lion(groups, lr=lr)


def _muon(model: nn.Module, lr: float, weight_decay: float) -> Optimizer:
    matrices: list[Tensor] = []
    others: list[Tensor] = []
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            is_body = parameter.dim() == 2 and not is_embedding(name) and "head" not in name
            (matrices if is_body else others).append(parameter)
    if not matrices or not others:
        msg = (
            f"muon needs weight matrices in the body of the model and parameters beside them; "
            f"{type(model).__name__} has {len(matrices)} and {len(others)}; take another optimizer"
        )
        raise ValueError(msg)
    return MuonWithAdamW(matrices, others, lr=lr, weight_decay=weight_decay)
