"""Digests of optimizer state and buffers: did anything change between two steps?"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import xxhash

__all__ = ["BUDGET_BYTES", "Digester", "Named", "TensorWatch", "digests"]

BUDGET_BYTES = 8 << 20
"""Bytes that are digested at each end of a step. What is larger is covered in turns."""

Key = tuple[object, ...]
Named = list[tuple[Key, torch.Tensor]]
_HABIT_STEPS = 3


def digests(tensors: Sequence[torch.Tensor]) -> npt.NDArray[np.uint64]:
    """A 64-bit digest of each tensor's bytes, uint64 of shape (tensors,).

    Any single changed bit changes the digest.
    """
    return Digester(tensors).take()


def _load_kernels() -> ModuleType | None:
    """The compiled passes, None without numba."""
    if importlib.util.find_spec("numba") is None:
        return None
    from flashback_core.sketch import kernels

    return kernels


_kernels = _load_kernels()


class Digester:
    """Digests of the same tensors, again and again; where they lie is looked up once.

    Args:
        tensors: In host memory.
    """

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._tensors = list(tensors)
        self._compiled = _kernels is not None and all(
            t.dtype is torch.float32 and t.is_contiguous() for t in tensors
        )
        self._addresses = np.array([t.data_ptr() for t in tensors], np.int64)
        self._sizes = np.array([t.numel() for t in tensors], np.int64)

    def take(self) -> npt.NDArray[np.uint64]:
        """The digests now."""
        out = np.zeros(len(self._tensors), np.uint64)
        if self._compiled and _kernels is not None:
            _kernels.checksum_pass(self._addresses, self._sizes, out)
        else:
            out[:] = [_digest(t) for t in self._tensors]
        return out


def _digest(tensor: torch.Tensor) -> int:
    data: Any = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
    return xxhash.xxh3_64_intdigest(memoryview(data))


class TensorWatch:
    """Tells which of some tensors changed between the end of a step and the start of the next.

    Tensors that change in the first steps (running statistics of a batch norm) do so by habit and
    are left out from then on. Where all tensors together exceed `budget` bytes, each step covers
    some of them in turn.

    Args:
        budget: Most bytes to digest at each end of a step.
    """

    def __init__(self, budget: int = BUDGET_BYTES) -> None:
        self._budget = budget
        self._turn = 0
        self._given: Named | None = None
        self._keys: list[Key] = []
        self._digester = Digester([])
        self._kept: npt.NDArray[np.uint64] | None = None
        self._habit: set[Key] = set()
        self._steps = 0
        self.covered = 1.0

    def end(self, tensors: Named) -> None:
        """Remember the tensors as a step leaves them.

        Args:
            tensors: (key, tensor) of each. The same list object again means the same tensors.
        """
        if tensors is not self._given or self.covered < 1.0:
            self._given = tensors
            chosen = self._choose(
                [(k, t) for k, t in tensors if k not in self._habit and _is_readable(t)]
            )
            self._keys = [key for key, _ in chosen]
            self._digester = Digester([t for _, t in chosen])
        self._kept = self._digester.take()

    def start(self, tensors: Named) -> list[Key]:
        """Keys of the tensors that are not as `end` saw them, or gone."""
        if self._kept is None or not self._keys:
            return []
        if tensors is self._given:
            differs = self._digester.take() != self._kept
            changed = [self._keys[i] for i in np.flatnonzero(differs)] if differs.any() else []
        else:
            changed = self._compare(tensors, self._kept)
        self._steps += 1
        return self._without_habits(changed)

    def _compare(self, tensors: Named, kept: npt.NDArray[np.uint64]) -> list[Key]:
        """What changed, where the tensors are other objects now (a state dict was loaded)."""
        now = {key: t for key, t in tensors if _is_readable(t)}
        there = [key for key in self._keys if key in now]
        found = dict(zip(there, digests([now[k] for k in there]).tolist(), strict=True))
        pairs = zip(self._keys, kept.tolist(), strict=True)
        return [key for key, digest in pairs if found.get(key) != digest]

    def _without_habits(self, changed: list[Key]) -> list[Key]:
        if self._steps <= _HABIT_STEPS and changed:
            self._habit.update(changed)
            self._given = None  # choose anew
            return []
        return changed

    def _choose(self, watched: list[tuple[Key, torch.Tensor]]) -> list[tuple[Key, torch.Tensor]]:
        """All tensors, or as many as the budget allows, beginning where the last turn ended."""
        total = sum(t.numel() * t.element_size() for _, t in watched)
        if total <= self._budget:
            self.covered = 1.0
            return watched
        chosen: list[tuple[Key, torch.Tensor]] = []
        size = 0
        for i in range(len(watched)):
            key, tensor = watched[(self._turn + i) % len(watched)]
            size += tensor.numel() * tensor.element_size()
            if chosen and size > self._budget:
                break
            chosen.append((key, tensor))
        self._turn = (self._turn + len(chosen)) % len(watched)
        self.covered = len(chosen) / len(watched)
        return chosen


def _is_readable(tensor: torch.Tensor) -> bool:
    """Whether a digest costs no device synchronisation and means something."""
    return tensor.device.type == "cpu" and tensor.layout is torch.strided and tensor.numel() > 1
