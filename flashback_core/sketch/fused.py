"""The sketch with numba: one compiled pass per half of a step (extra ``fast``).

Float32 tensors on the CPU are read where they lie, through their addresses; other dtypes go
through `flat`. Kernels are compiled once per machine (numba keeps them on disk) and loaded when a
recorder starts, never within a step.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from flashback_core.sketch import kernels
from flashback_core.sketch.backend import ReadySums, Watched, dense
from flashback_core.sketch.flat import FlatBackend
from flashback_core.sketch.layout import Turn
from flashback_core.sketch.sums import add_sums, empty_sums

__all__ = ["FusedBackend"]

Ints = npt.NDArray[np.int64]

_NOWHERE = 8
"""Address of a tensor without entries: never read, and not 0, which stands for "no gradient"."""


class FusedBackend:
    """See the module. Holds 4 bytes and one bit per parameter.

    Args:
        watched: Tensors on the CPU.
        histogram_every: See `layout.Turn`.
    """

    name = "fused"

    def __init__(self, watched: Watched, histogram_every: int = 1) -> None:
        self._turn = Turn(histogram_every)
        self._setup(watched)

    def _setup(self, watched: Watched) -> None:
        self._watched = watched
        places = range(len(watched.parameters))
        self._mine = [i for i in places if watched.parameters[i].dtype == torch.float32]
        self._other = [i for i in places if watched.parameters[i].dtype != torch.float32]
        self._parameters = [watched.parameters[i] for i in self._mine]
        sizes = [p.numel() for p in self._parameters]
        self._sizes = np.array(sizes, np.int64)
        self._groups = np.array([watched.groups[i] for i in self._mine], np.int64)
        self._units = np.array([watched.units[i] for i in self._mine], np.int64)
        self._words = _starts([-(-n // 32) for n in sizes])
        self._signs = np.zeros(int(sum(-(-n // 32) for n in sizes)), np.uint32)
        self._known = np.zeros(len(sizes), np.uint8)
        self._floats = _starts(sizes)
        self._snapshot = np.empty(int(sum(sizes)), np.float32)
        for p, start, n in zip(self._parameters, self._floats, sizes, strict=True):
            torch.from_numpy(self._snapshot[start : start + n]).copy_(p.detach().reshape(-1))
        self._pointers: list[int] = []
        self._addresses = np.zeros(0, np.int64)
        self._flat = None
        if self._other:
            self._flat = FlatBackend(watched.only(self._other), self._turn.every)
        self._sums = empty_sums(watched.n_groups, len(watched.parameters))

    def replace(self, watched: Watched, kept: Sequence[int | None]) -> None:
        """Watch other tensors from now on, keeping the signs of those that stay."""
        place = {old: i for i, old in enumerate(self._mine)}
        signs, known, words, sizes = self._signs, self._known, self._words, self._sizes
        flat, others = self._flat, self._other
        self._setup(watched)
        for i, new in enumerate(self._mine):
            old = place.get(kept[new] if kept[new] is not None else -1)  # type: ignore[arg-type]
            if old is not None and known[old]:
                n = -(-int(sizes[old]) // 32)
                a, b = int(self._words[i]), int(words[old])
                self._signs[a : a + n] = signs[b : b + n]
                self._known[i] = 1
        if flat is not None and self._flat is not None:
            before = {old: i for i, old in enumerate(others)}
            moved = [before.get(old) if (old := kept[new]) is not None else None
                     for new in self._other]  # fmt: skip
            flat.replace(watched.only(self._other), moved)
            self._flat = flat

    def memory_bytes(self) -> int:
        """Memory held between steps, in bytes."""
        own = self._snapshot.nbytes + self._signs.nbytes
        return own + (self._flat.memory_bytes() if self._flat else 0)

    def gradients(self, scale: float) -> None:
        """Read all gradients, divided by `scale`."""
        sums = empty_sums(self._watched.n_groups, len(self._watched.parameters))
        self._sums = sums
        if self._flat is not None:
            self._flat.gradients(scale)
        held: list[torch.Tensor] = []  # copies live until the pass is over
        addresses = np.array(_gradient_addresses(self._parameters, scale, held), np.int64)
        squares = np.full(len(addresses), np.nan)
        kernels.gradient_pass(
            addresses, self._sizes, self._groups, self._words, self._signs, self._known,
            sums.moments, sums.peaks, sums.counts, sums.bins[0], squares, self._units,
            self._turn.every, self._turn.phase,
        )  # fmt: skip
        changed = self._changed()
        if self._other:
            sums.tensor_sumsq[self._mine] = squares
            sums.changed[self._mine] = changed
        else:
            sums.tensor_sumsq, sums.changed = squares, changed

    def _changed(self) -> Ints:
        """Entries of each weight that are not as the step before left them."""
        held: list[torch.Tensor] = []
        addresses = self._weights(held)
        out = np.zeros(len(addresses), np.int64)
        kernels.changed_pass(
            addresses, self._sizes, self._floats, self._snapshot.view(np.int32), out
        )
        return out

    def _weights(self, held: list[torch.Tensor]) -> Ints:
        """Addresses of the weights; looked into only where they are not those of last time."""
        pointers = [p.data_ptr() for p in self._parameters]
        if pointers != self._pointers:
            self._addresses = np.array([_address(p, 1.0, held) for p in self._parameters], np.int64)
            self._pointers = pointers if not held else []
        return self._addresses

    def updates(self) -> ReadySums:
        """Read the weights after the step."""
        sums = self._sums
        held: list[torch.Tensor] = []
        addresses = self._weights(held)
        still = np.zeros(len(addresses), np.int64)
        kernels.update_pass(
            addresses, self._sizes, self._groups, self._floats, self._snapshot,
            sums.moments, sums.peaks, sums.counts, sums.bins[1], still, self._units,
            self._turn.every, self._turn.phase,
        )  # fmt: skip
        sums.still[self._mine] = still
        if self._flat is not None:
            add_sums(sums, self._flat.updates().result(), self._other)
        self._turn = self._turn.next()
        return ReadySums(sums)


def _starts(sizes: Sequence[int]) -> Ints:
    """Where each of consecutive runs of these sizes begins."""
    return np.cumsum([0, *sizes], dtype=np.int64)[:-1]


def _gradient_addresses(
    parameters: Sequence[torch.Tensor], scale: float, held: list[torch.Tensor]
) -> list[int]:
    """Where each gradient lies; 0 where there is none. The usual case is kept short."""
    plain, dtype = torch.strided, torch.float32
    out = []
    for p in parameters:
        g = p.grad
        if g is None:
            out.append(0)
        elif scale == 1.0 and g.dtype is dtype and g.layout is plain and g.is_contiguous():
            out.append(g.data_ptr() or _NOWHERE)
        else:
            out.append(_address(g, scale, held))
    return out


def _address(tensor: torch.Tensor | None, scale: float, held: list[torch.Tensor]) -> int:
    """Where the entries of `tensor` lie as contiguous float32; 0 for None."""
    if tensor is None:
        return 0
    if tensor.numel() == 0:
        return _NOWHERE
    if (
        scale == 1.0
        and tensor.layout is torch.strided
        and tensor.dtype is torch.float32
        and tensor.is_contiguous()
    ):
        return tensor.data_ptr()
    copy = dense(tensor).to(torch.float32)
    copy = (copy / scale if scale != 1.0 else copy).contiguous()
    held.append(copy)
    return copy.data_ptr()
