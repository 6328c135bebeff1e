"""Leaves out a step whose gradients hold NaN or infinity, as GradScaler does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from flashback_core.sketch.parameters import innermost_optimizer, stepped_parameters
from flashback_core.sketch.sharded import is_sharded, local_part

__all__ = ["Prevention", "has_nonfinite"]


class Prevention:
    """Leaves out bad steps of a trainer's optimizers, on every rank.

    A fused optimizer is told with a tensor on its device and leaves its weights alone by itself:
    there is no host synchronisation. From any other one the gradients are taken away, since
    parameters without a gradient are left alone, and so is their state: that costs one host
    synchronisation. Under a GradScaler, which does all this, nothing is done.

    Args:
        trainer: A trainer whose fit begins.
    """

    def __init__(self, trainer: Any) -> None:
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        self._is_needed = scaler is None or not scaler.is_enabled()
        optimizers = [innermost_optimizer(o) for o in trainer.optimizers]
        self._handles = [o.register_step_post_hook(_forget) for o in optimizers if _can_skip(o)]

    def before_step(self, optimizer: Any) -> bool:
        """Look at the gradients of the step to come.

        Returns:
            Whether they were taken away; False where the optimizer itself was told.
        """
        inner = innermost_optimizer(optimizer)
        parameters = [p for p in stepped_parameters(inner) if p.grad is not None]
        if not self._is_needed or not parameters:
            return False
        bad = has_nonfinite(parameters)
        if _can_skip(inner):
            inner.found_inf = bad  # type: ignore[attr-defined]  # GradScaler's way to tell it
            return False
        if not bool(bad):
            return False
        for parameter in parameters:
            parameter.grad = None
        return True

    def remove(self) -> None:
        """Leave the optimizers as they were."""
        for handle in self._handles:
            handle.remove()


def _can_skip(optimizer: torch.optim.Optimizer) -> bool:
    """Whether a step can be left out on the device."""
    if not getattr(optimizer, "_step_supports_amp_scaling", False):
        return False
    return not any(is_sharded(p) for p in stepped_parameters(optimizer))


def _forget(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    """Take back what the optimizer was told, unless a GradScaler has told it."""
    if getattr(optimizer, "grad_scale", None) is None and hasattr(optimizer, "found_inf"):
        del optimizer.found_inf


def has_nonfinite(parameters: Sequence[torch.Tensor]) -> torch.Tensor:
    """1.0 if a gradient holds NaN or infinity, else 0.0, on the device of the gradients.

    Where parameters are sharded, all ranks get the same answer; each of them has to ask.
    """
    gradients = [local_part(p.grad) for p in parameters if p.grad is not None]
    dense = [g.coalesce().values() if g.is_sparse else g for g in gradients]
    device = dense[0].device if dense else torch.device("cpu")
    bad = torch.zeros((), device=device)
    filled = [g for g in dense if g.numel()]
    if filled:
        norms = torch._foreach_norm(filled, torch.inf)
        largest = torch.stack([n.to(device, torch.float32) for n in norms])
        bad = (~torch.isfinite(largest)).any().float()
    if any(is_sharded(p) for p in parameters):
        torch.distributed.all_reduce(bad, op=torch.distributed.ReduceOp.MAX)
    return bad
