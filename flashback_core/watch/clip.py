"""ClipWatch: by which factor the loop scaled the gradients between seeing and using them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from flashback_core.sketch.sharded import local_part

__all__ = ["ClipWatch"]

_MOST = 1 << 12


class ClipWatch:
    """Compares one gradient at `observe` with the same at the update.

    Clipping by norm scales all gradients by one factor, so one tensor tells it: the largest of at
    most 4 096 entries, else the smallest. Nothing here waits for a device.
    """

    def __init__(self) -> None:
        self._parameters: Sequence[torch.Tensor] | None = None
        self._watched: torch.Tensor | None = None
        self._norm: float | torch.Tensor | None = None
        self._scale = 1.0

    def observe(self, parameters: Sequence[torch.Tensor], scale: float) -> None:
        """Look at a gradient that has `scale` on it, before the loop's own clipping.

        Args:
            parameters: All that are updated; the same object again means the same tensors.
            scale: Loss scale that is still on the gradients.
        """
        kept = self._watched
        if parameters is not self._parameters or kept is None or not _is_dense(kept.grad):
            self._parameters, self._watched = parameters, _chosen(parameters)
        self._scale = scale
        self._norm = None if self._watched is None else _norm(self._watched)

    def coefficient(self, scale: float) -> float | torch.Tensor | None:
        """Norm now, divided by `scale`, over the norm at `observe`.

        None where nothing was observed for this step; NaN without a gradient that is not zero. On
        a device it is a tensor of one entry that is on its way to the host.
        """
        before, self._norm = self._norm, None
        if before is None or self._watched is None or not _is_dense(self._watched.grad):
            return None
        now, rescaled = _norm(self._watched), self._scale / scale
        if isinstance(before, torch.Tensor):
            return (now / before * rescaled).to("cpu", non_blocking=True)
        return float(now) / before * rescaled if before > 0 else math.nan


def _chosen(parameters: Sequence[torch.Tensor]) -> torch.Tensor | None:
    sized = [(local_part(p).numel(), p) for p in parameters if _is_dense(p.grad)]
    sized = [(n, p) for n, p in sized if n]
    fitting = [(n, p) for n, p in sized if n <= _MOST]
    if fitting:
        return max(fitting, key=_size)[1]
    return min(sized, key=_size)[1] if sized else None


def _size(sized: tuple[int, torch.Tensor]) -> int:
    return sized[0]


def _is_dense(gradient: Any) -> bool:
    return gradient is not None and gradient.layout is torch.strided


def _norm(parameter: torch.Tensor) -> float | torch.Tensor:
    assert parameter.grad is not None  # the caller has looked
    gradient = local_part(parameter.grad).detach()
    if gradient.device.type != "cpu":
        return torch.linalg.vector_norm(gradient)  # type: ignore[no-any-return]  # torch says Any
    if gradient.dtype is not torch.float32:
        return float(torch.linalg.vector_norm(gradient))
    flat: npt.NDArray[np.float32] = gradient.numpy().ravel()  # quicker than torch when so small
    with np.errstate(all="ignore"):  # a gradient may be anything
        return math.sqrt(float(np.dot(flat, flat)))
