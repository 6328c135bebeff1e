"""Updates worked out from the state of Adam and AdamW: no snapshot of the weights is held.

After its step Adam's moments hold all that its update was made of, so that a snapshot (4 bytes a
parameter) can be saved. What this cannot see is a weight that something else changed between two
steps, and it gives the update as computed, before it was rounded into the weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from flashback_core.errors import ModelError
from flashback_core.sketch.layout import Piece

__all__ = ["AdamState"]


class AdamState:
    """Gives pieces of the last update of an Adam or AdamW optimizer.

    Args:
        optimizer: A `torch.optim.Adam` or `torch.optim.AdamW`.

    Raises:
        ModelError: If it is another optimizer.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        if not isinstance(optimizer, (torch.optim.Adam, torch.optim.AdamW)):
            msg = (
                f"update_from='state' works for torch.optim.Adam and AdamW, and this is a "
                f"{type(optimizer).__name__}; use update_from='snapshot'"
            )
            raise ModelError(msg)
        self._optimizer = optimizer
        self._done: dict[int, float] = {}
        self._groups: dict[int, Mapping[str, Any]] = {}
        self._stepped: dict[int, bool] = {}

    def begin(self) -> None:
        """Look which parameters the step that just ended has moved."""
        self._groups = {
            id(p): group for group in self._optimizer.param_groups for p in group["params"]
        }
        for p, state in self._optimizer.state.items():
            count = float(state["step"]) if "step" in state else 0.0
            self._stepped[id(p)] = count != self._done.get(id(p), 0.0)
            self._done[id(p)] = count

    def update(self, parameter: torch.Tensor, piece: Piece) -> torch.Tensor:
        """Entries [start, stop) of the parameter's last update, float32 and flat."""
        weights = parameter.detach().reshape(-1)[piece.start : piece.stop].to(torch.float32)
        state = self._optimizer.state.get(parameter, {})
        if not self._stepped.get(id(parameter), False) or "exp_avg" not in state:
            return torch.zeros_like(weights)
        group = self._groups[id(parameter)]
        step = _adam_step(state, group, self._done[id(parameter)], piece)
        decay = float(group["lr"]) * float(group["weight_decay"])
        if not _is_decoupled(self._optimizer, group) or decay == 0.0:
            return step
        # p_new = p_old (1 - lr wd) + step, hence p_new - p_old:
        return (step - decay * weights) / (1.0 - decay)


def _adam_step(
    state: Mapping[str, Any], group: Mapping[str, Any], count: float, piece: Piece
) -> torch.Tensor:
    """``- lr m_hat / (sqrt(v_hat) + eps)``, the sign turned when maximising."""
    beta1, beta2 = (float(b) for b in group["betas"])
    moment = _part(state["exp_avg"], piece)
    square = _part(state["max_exp_avg_sq" if group["amsgrad"] else "exp_avg_sq"], piece)
    below = square.sqrt() / (1.0 - beta2**count) ** 0.5 + float(group["eps"])
    size = float(group["lr"]) / (1.0 - beta1**count)
    # the optimizer turns the gradient itself when maximising, so the moment has the sign already
    step: torch.Tensor = -size * moment / below
    return step


def _part(tensor: torch.Tensor, piece: Piece) -> torch.Tensor:
    part: torch.Tensor = tensor.detach().reshape(-1)[piece.start : piece.stop]
    return part.to(torch.float32)


def _is_decoupled(optimizer: torch.optim.Optimizer, group: Mapping[str, Any]) -> bool:
    default = isinstance(optimizer, torch.optim.AdamW)
    return bool(group.get("decoupled_weight_decay", default))
