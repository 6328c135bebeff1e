"""Digests of optimizer state and buffers: did anything change between two steps?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import xxhash

from flashback_core.sketch.compiled import load_kernels

__all__ = ["BUDGET_BYTES", "Digester", "Key", "Named", "TensorWatch", "digests"]

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


_kernels = load_kernels()


class Digester:
    """Digests of the same tensors, again and again; where they lie is looked up once.

    Args:
        tensors: In host memory.
    """

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._tensors = list(tensors)
        self._pointers: list[int] | None = None
        self._addresses = self._words = self._places = np.zeros(0, np.int64)
        self._others: list[int] = []
        self._held: list[torch.Tensor] = []

    def _locate(self) -> None:
        """Look up which tensors the compiled pass can read, and where they lie."""
        compiled = _kernels is not None
        places = [i for i, t in enumerate(self._tensors) if compiled and _is_words(t)]
        found = set(places)
        self._others = [i for i in range(len(self._tensors)) if i not in found]
        mine = [self._tensors[i] for i in places]
        self._places = np.array(places, np.int64)
        self._addresses = np.array([t.data_ptr() for t in mine], np.int64)
        self._words = np.array([t.nbytes // 4 for t in mine], np.int64)
        self._held = [t.detach() for t in mine]  # the memory that is read is not freed

    def take(self, *, again: bool = False) -> npt.NDArray[np.uint64]:
        """The digests now; 0 for a tensor that has left the host's memory.

        Args:
            again: Read the memory that was read last time, also where a tensor was given other
                memory since (``.data = …``): to look that up touches every tensor.
        """
        out = np.zeros(len(self._tensors), np.uint64)
        if not self._tensors:
            return out
        if self._pointers is None or not again:
            pointers = list(map(_address, self._tensors))
            if pointers != self._pointers:
                self._locate()
                self._pointers = pointers
        if _kernels is not None and len(self._places) == len(out):
            _kernels.checksum_pass(self._addresses, self._words, out)
            return out
        if _kernels is not None:
            some = np.zeros(len(self._places), np.uint64)
            _kernels.checksum_pass(self._addresses, self._words, some)
            out[self._places] = some
        for i in self._others:
            out[i] = _digest(self._tensors[i])
        return out


_address = torch.Tensor.data_ptr


def _is_words(tensor: torch.Tensor) -> bool:
    """Whether the bytes of `tensor` are 32-bit words in one piece of host memory."""
    return (
        tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and tensor.is_contiguous()
        and tensor.nbytes % 4 == 0
        and tensor.data_ptr() % 4 == 0
    )


def _digest(tensor: torch.Tensor) -> int:
    if tensor.device.type != "cpu":
        return 0
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

    @property
    def habit(self) -> frozenset[Key]:
        """Keys of the tensors that change by habit."""
        return frozenset(self._habit)

    def start(self, tensors: Named) -> list[Key]:
        """Keys of the tensors that are not as `end` saw them, or gone."""
        if self._kept is None or not self._keys:
            return []
        if tensors is self._given:
            differs = self._digester.take(again=True) != self._kept
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
    return tensor.device.type == "cpu" and tensor.layout is torch.strided and tensor.numel() > 0
