"""RunningWatch: is one entry of a buffer that always moves suddenly out of all bounds?"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from flashback_core.watch.state import Key

__all__ = ["RunningWatch"]

_ALONE = 1e3
_FAR = 1e8
_SEEN = 8
_MOST = 1 << 20

Floats = npt.NDArray[np.float32]


class RunningWatch:
    """Watches buffers that change at every step, as the running statistics of a batch norm.

    They are no function of anything that is seen here, so only what no training does is reported:
    in one step exactly one entry of all these buffers changes by more than 1 000 times the largest
    change of its tensor so far, and it changes by more than 1e8 times that, or stops being finite.
    (A channel that really explodes moves its mean and its variance.) Once reported, a tensor is
    left out.

    Args:
        named: Key and tensor of each.
    """

    def __init__(self, named: Sequence[tuple[Key, torch.Tensor]]) -> None:
        chosen = [(k, t) for k, t in named if _is_plain(t)]
        if sum(t.numel() for _, t in chosen) > _MOST:
            chosen = []
        self._keys = [key for key, _ in chosen]
        self._views = [t.detach().reshape(-1).numpy() for _, t in chosen]
        sizes = np.array([v.size for v in self._views], np.int64)
        self._starts = np.cumsum(sizes) - sizes
        self._tensor_of = np.repeat(np.arange(len(sizes)), sizes)
        self._largest = np.zeros(len(sizes), np.float32)
        self._last: Floats | None = None
        self._seen = 0

    def look(self) -> list[Key]:
        """Keys of the buffers of which one entry is where no training brings it."""
        if not self._keys:
            return []
        now: Floats = np.concatenate(self._views)
        last, self._last = self._last, now
        if last is None:
            return []
        with np.errstate(all="ignore"):
            change = np.abs(now - last)
            change[np.isnan(change)] = np.inf
            change[~np.isfinite(last)] = 0.0
            most = np.maximum.reduceat(change, self._starts)
            far = most > _ALONE * self._largest
        found = self._judge(change, most, far) if far.any() else []
        self._seen += bool(most.any())
        np.maximum(self._largest, most, out=self._largest)
        return found

    def _judge(self, change: Floats, most: Floats, far: npt.NDArray[np.bool_]) -> list[Key]:
        """The tensor of the one entry that jumped, if it was alone."""
        bounds = self._largest[self._tensor_of]
        alone = np.flatnonzero((change > _ALONE * bounds) & (bounds > 0)).tolist()
        if len(alone) != 1 or self._seen < _SEEN:
            return []
        tensor = int(self._tensor_of[alone[0]])
        is_far = change[alone[0]] > np.float64(_FAR) * self._largest[tensor]
        return [self._keys[tensor]] if is_far and far.sum() == 1 else []


def _is_plain(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "cpu" and tensor.dtype is torch.float32 and tensor.is_contiguous()
