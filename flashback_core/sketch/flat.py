"""The sketch with torch and numpy only: vectorised passes over blocks that stay in cache.

Every pass over a block is one numpy call on a preallocated buffer. Histograms come from the top
byte of each float32 (a bin is two binary exponents, hence two bits' worth of the top byte) by
counting how many entries reach each threshold: 15 comparisons on bytes are cheaper than one
`bincount`. Signs are kept as packed bits, one per parameter.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from flashback_core.schema import N_BINS
from flashback_core.sketch.adam_state import AdamState
from flashback_core.sketch.backend import ReadySums, Watched, dense
from flashback_core.sketch.layout import BLOCK, Block, Piece, Turn, plan_blocks
from flashback_core.sketch.reference import magnitude_bins
from flashback_core.sketch.sums import empty_sums

__all__ = ["FlatBackend"]

F32 = npt.NDArray[np.float32]
Bits = npt.NDArray[np.uint8]

WORK = 1 << 16
"""Entries of a working block: all its buffers together fit a core's second-level cache."""

_WORDS = {2: torch.int16, 4: torch.int32, 8: torch.int64}

_ABS = np.int32(0x7FFFFFFF)
_INF = 0x7F800000
_SAFE = (1e-15, 1e16)  # peaks for which a block's float32 squares neither vanish nor overflow


class FlatBackend:
    """See the module. Holds one snapshot and one sign bit per parameter.

    Args:
        watched: Tensors on the CPU.
        histogram_every: See `layout.Turn`.
        state: Where updates come from instead of a snapshot.
    """

    name = "flat"

    def __init__(
        self, watched: Watched, histogram_every: int = 1, state: AdamState | None = None
    ) -> None:
        self._turn = Turn(histogram_every)
        self._state = state
        self._work = np.empty(WORK, np.float32)
        self._work_t = torch.from_numpy(self._work)
        self._update = np.empty(WORK, np.float32)
        self._update_t = torch.from_numpy(self._update)
        self._magnitude = np.empty(WORK, np.int32)
        self._top = np.empty(WORK, np.uint8)
        self._flags = np.empty(WORK, np.bool_)
        self._signs: list[Bits] = []
        self._known: list[bool] = []
        self._setup(watched)

    def _setup(self, watched: Watched) -> None:
        self._watched = watched
        self._views = [p.detach() for p in watched.parameters]
        numels = [p.numel() for p in watched.parameters]
        kinds = [p.dtype for p in watched.parameters]
        self._blocks = plan_blocks(numels, watched.groups, kinds, WORK)
        self._targets = [_targets(block, self._views, self._work_t) for block in self._blocks]
        kept = self._blocks if self._state is None else []
        self._snapshots = [self._snapshot(block) for block in kept]
        self._bits = [np.zeros(-(-block.size // 8), np.uint8) for block in self._blocks]
        self._known = [False] * len(numels)
        self._sums = empty_sums(watched.n_groups, len(numels))

    def replace(self, watched: Watched, kept: Sequence[int | None]) -> None:
        """Watch other tensors from now on, keeping the signs of those that stay."""
        signs, known = self._signs_by_tensor(), self._known
        self._setup(watched)
        for block, bits in zip(self._blocks, self._bits, strict=True):
            for piece in block.pieces:
                old = kept[piece.tensor]
                if old is not None and known[old]:
                    self._known[piece.tensor] = True
                    a, b = piece.offset // 8, -(-(piece.offset + piece.size) // 8)
                    bits[a:b] = signs[old][piece.start // 8 : -(-piece.stop // 8)]

    def _signs_by_tensor(self) -> list[Bits]:
        out = [np.zeros(-(-p.numel() // 8), np.uint8) for p in self._watched.parameters]
        for block, bits in zip(self._blocks, self._bits, strict=True):
            for piece in block.pieces:
                a, b = piece.offset // 8, -(-(piece.offset + piece.size) // 8)
                out[piece.tensor][piece.start // 8 : -(-piece.stop // 8)] = bits[a:b]
        return out

    def memory_bytes(self) -> int:
        """Memory held between steps, in bytes."""
        snapshots = sum(s.numel() * s.element_size() for s in self._snapshots)
        work = self._work.nbytes + self._update.nbytes + self._magnitude.nbytes
        work += self._top.nbytes + self._flags.nbytes
        return snapshots + work + sum(b.nbytes for b in self._bits)

    # -- gradients ---------------------------------------------------------------------------

    def gradients(self, scale: float) -> None:
        """Read all gradients, divided by `scale`."""
        parameters = self._watched.parameters
        self._sums = empty_sums(self._watched.n_groups, len(parameters))
        grads = [None if p.grad is None else dense(p.grad) for p in parameters]
        self._views = [p.detach() for p in parameters]
        for b in range(len(self._blocks)):
            self._gradient_block(b, grads, scale)
            if self._state is None:
                self._changed_block(b)
        for i, grad in enumerate(grads):
            if grad is not None:
                self._known[i] = True
                if grad.numel() == 0:
                    self._sums.tensor_sumsq[i] = 0.0

    def _gradient_block(self, b: int, grads: Sequence[torch.Tensor | None], scale: float) -> None:
        block, bits = self._blocks[b], self._bits[b]
        present = [p for p in block.pieces if grads[p.tensor] is not None]
        if not present:
            return
        x = self._gathered(b, grads, scale)
        sums, group = self._sums, block.group
        n = sum(p.size for p in present)
        peak, n_bad = self._magnitudes(x, self._counted(present, x.size), sums.bins[0])
        sums.counts[group, 0] += n
        sums.counts[group, 1] += n_bad
        sums.peaks[group, 0] = max(sums.peaks[group, 0], peak)
        self._flips(x, block, bits, present)
        clean = _finite(x) if n_bad else x
        sums.moments[group, 0] += _total(clean)
        for piece in present:
            part = clean[piece.offset : piece.offset + piece.size]
            square = _square_sum(part, peak)
            sums.moments[group, 1] += square
            before = sums.tensor_sumsq[piece.tensor]
            sums.tensor_sumsq[piece.tensor] = square if np.isnan(before) else before + square

    def _gathered(self, b: int, grads: Sequence[torch.Tensor | None], scale: float) -> F32:
        """The block's gradient as contiguous float32, without a copy where that is possible."""
        block = self._blocks[b]
        if len(block.pieces) == 1:
            first = block.pieces[0]
            grad = grads[first.tensor]
            assert grad is not None  # the caller has looked
            part = grad.reshape(-1)[first.start : first.stop]
            if part.dtype == torch.float32 and part.is_contiguous() and scale == 1.0:
                return part.numpy()
            self._work_t[: block.size].copy_(part)
        else:
            self._work[: block.size] = 0.0
            pairs = [
                (target, grad)
                for target, p in zip(self._targets[b], block.pieces, strict=True)
                if (grad := grads[p.tensor]) is not None
            ]
            torch._foreach_copy_([t for t, _ in pairs], [g for _, g in pairs])
        x = self._work[: block.size]
        if scale != 1.0:
            with np.errstate(invalid="ignore", over="ignore"):
                np.divide(x, np.float32(scale), out=x)
        return x

    def _flips(self, x: F32, block: Block, bits: Bits, present: Sequence[object]) -> None:
        """Count entries whose sign differs from their last non-zero sign; keep the new ones."""
        n = x.size
        negative = np.packbits(np.less(x, 0, out=self._flags[:n]))
        positive = np.packbits(np.greater(x, 0, out=self._flags[:n]))
        flipped = (negative & ~bits) | (positive & bits)
        np.bitwise_xor(bits, flipped, out=bits)
        counts = self._sums.counts[block.group]
        known = [p for p in block.pieces if p in present and self._known[p.tensor]]
        counts[3] += sum(p.size for p in known)
        if len(known) == len(block.pieces):
            counts[2] += int(np.bitwise_count(flipped).sum())
            return
        for p in known:
            part = flipped[p.offset // 8 : -(-(p.offset + p.size) // 8)]
            counts[2] += int(np.bitwise_count(part).sum())

    def _counted(self, pieces: Sequence[Piece], size: int) -> list[slice]:
        """The parts of a block that the histograms count at this step."""
        if self._turn.every == 1 and sum(p.size for p in pieces) == size:
            return [slice(0, size)]
        units = self._watched.units
        return [
            slice(p.offset, p.offset + p.size)
            for p in pieces
            if self._turn.counts(units[p.tensor] + p.start // BLOCK)
        ]

    def _magnitudes(
        self, x: F32, counted: Sequence[slice], bins: npt.NDArray[np.int64]
    ) -> tuple[float, int]:
        """Count magnitude bins; returns the largest finite magnitude and the bad entries."""
        n = x.size
        magnitude = np.bitwise_and(x.view(np.int32), _ABS, out=self._magnitude[:n])
        top = int(magnitude.max())
        if top >= _INF:
            for part in counted:
                bins += magnitude_bins(x[part])
            clean = x[np.isfinite(x)]
            return float(np.abs(clean).max(initial=0.0)), n - clean.size
        if counted:
            code = self._top[:n]
            np.right_shift(magnitude, 24, out=code, casting="unsafe")
        for part in counted:
            _count_bins(code[part], top >> 24, bins, self._flags)
        return float(np.int32(top).view(np.float32)), 0

    # -- updates -----------------------------------------------------------------------------

    def _changed_block(self, b: int) -> None:
        """Count entries of the weights that are not as the step before left them."""
        block, word = self._blocks[b], _WORDS[self._snapshots[b].element_size()]
        differs = self._weights(b).contiguous().view(word) != self._snapshots[b].view(word)
        if bool(differs.any()):
            for p in block.pieces:
                part = differs[p.offset : p.offset + p.size]
                self._sums.changed[p.tensor] += int(torch.count_nonzero(part))

    def _snapshot(self, block: Block) -> torch.Tensor:
        out = torch.zeros(block.size, dtype=self._views[block.pieces[0].tensor].dtype)
        for piece in block.pieces:
            flat = self._views[piece.tensor].reshape(-1)
            out[piece.offset : piece.offset + piece.size] = flat[piece.start : piece.stop]
        return out

    def updates(self) -> ReadySums:
        """Read the weights after the step."""
        # views are taken anew: `parameter.data = …` gives a parameter other memory
        self._views = [p.detach() for p in self._watched.parameters]
        if self._state is not None:
            self._state.begin()
        for b in range(len(self._blocks)):
            self._update_block(b)
        self._turn = self._turn.next()
        return ReadySums(self._sums)

    def _weights(self, b: int) -> torch.Tensor:
        """The block's weights in their own dtype, without a copy where that is possible."""
        block = self._blocks[b]
        if len(block.pieces) == 1:
            piece = block.pieces[0]
            return self._views[piece.tensor].reshape(-1)[piece.start : piece.stop]
        views = [self._views[p.tensor] for p in block.pieces]
        if views[0].dtype == torch.float32:
            self._work[: block.size] = 0.0
            torch._foreach_copy_(self._targets[b], views)
            return self._work_t[: block.size]
        now = torch.zeros(block.size, dtype=views[0].dtype)
        torch._foreach_copy_(_targets(block, self._views, now), views)
        return now

    def _update_block(self, b: int) -> None:
        block = self._blocks[b]
        now = self._weights(b)
        if self._state is None:
            u, weights = self._difference(now, self._snapshots[b], block.size)
        else:
            u, weights = self._from_state(block, now, self._state)
        sums, group = self._sums, block.group
        real = sum(p.size for p in block.pieces)
        counted = self._counted(block.pieces, block.size)
        peak, n_bad = self._magnitudes(u, counted, sums.bins[1])
        sums.counts[group, 4] += real
        sums.counts[group, 5] += n_bad
        sums.counts[group, 6] += real
        sums.peaks[group, 1] = max(sums.peaks[group, 1], peak)
        sums.moments[group, 2] += _square_sum(_finite(u) if n_bad else u, peak)
        sums.moments[group, 3] += _weight_square_sum(weights, n_bad)
        self._unmoved(block, u, weights, now.dtype == torch.float32)

    def _unmoved(self, block: Block, u: F32, weights: F32, narrow: bool) -> None:
        """Count entries that did not move, and float32 weights with nothing in their low bits."""
        counts, n = self._sums.counts[block.group], block.size
        unmoved = np.equal(u, 0, out=self._flags[:n])
        if unmoved.any():
            for p in block.pieces:
                count = int(np.count_nonzero(unmoved[p.offset : p.offset + p.size]))
                counts[7] += count
                self._sums.still[p.tensor] += count
        if narrow:
            low = np.bitwise_and(weights.view(np.int32), 0xFFFF, out=self._magnitude[:n])
            padding = n - sum(p.size for p in block.pieces)
            counts[8] += n - int(np.count_nonzero(low)) - padding

    def _from_state(self, block: Block, now: torch.Tensor, state: AdamState) -> tuple[F32, F32]:
        """The update as the optimizer's state tells it, and the weights as float32."""
        u = self._update[: block.size]
        u[:] = 0.0
        for p in block.pieces:
            part = state.update(self._watched.parameters[p.tensor], p)
            u[p.offset : p.offset + p.size] = part.numpy()
        return u, now.to(torch.float32).numpy()

    def _difference(self, now: torch.Tensor, snapshot: torch.Tensor, n: int) -> tuple[F32, F32]:
        """``now - snapshot`` and ``now`` as float32; the snapshot becomes `now`."""
        u, target = self._update[:n], self._update_t[:n]
        if now.dtype == torch.float32:
            weights = now.numpy()
            with np.errstate(invalid="ignore", over="ignore"):
                np.subtract(weights, snapshot.numpy(), out=u)
            np.copyto(snapshot.numpy(), weights)
            return u, weights
        wide = torch.float64 if now.dtype == torch.float64 else torch.float32
        target.copy_(now.to(wide) - snapshot.to(wide))
        snapshot.copy_(now)
        return u, now.to(torch.float32).numpy()


def _targets(
    block: Block, views: Sequence[torch.Tensor], buffer: torch.Tensor
) -> list[torch.Tensor]:
    """Where each tensor of a block of several goes in `buffer`, in the tensor's own shape."""
    if len(block.pieces) == 1:
        return []
    return [buffer[p.offset : p.offset + p.size].view(views[p.tensor].shape) for p in block.pieces]


def _count_bins(
    code: npt.NDArray[np.uint8], top: int, bins: npt.NDArray[np.int64], flags: npt.NDArray[np.bool_]
) -> None:
    """Add to `bins` how many entries of `code` (top byte of the magnitude) lie in each bin."""
    reached = code.size
    for b in range(1, N_BINS):
        threshold = 48 + b
        if threshold > top:
            bins[b - 1] += reached
            return
        above = int(np.count_nonzero(np.greater_equal(code, threshold, out=flags[: code.size])))
        bins[b - 1] += reached - above
        reached = above
    bins[N_BINS - 1] += reached


def _finite(x: F32) -> F32:
    """`x` with zeros where it is not finite."""
    return np.where(np.isfinite(x), x, np.float32(0))


def _total(x: F32) -> float:
    with np.errstate(over="ignore"):
        total = float(x.sum())
    return total if np.isfinite(total) else float(x.sum(dtype=np.float64))


def _square_sum(x: F32, peak: float) -> float:
    """Sum of squares of finite `x`, in float64 where float32 squares would vanish or overflow."""
    if peak == 0.0:
        return 0.0
    if _SAFE[0] < peak < _SAFE[1]:
        return float(np.einsum("i,i->", x, x))
    wide = x.astype(np.float64)
    return float(np.einsum("i,i->", wide, wide))


def _weight_square_sum(weights: F32, n_bad: int) -> float:
    square = float(np.einsum("i,i->", weights, weights)) if not n_bad else np.nan
    if np.isfinite(square) and (square > 1e-24 or not weights.any()):
        return square
    wide = _finite(weights).astype(np.float64)
    return float(np.einsum("i,i->", wide, wide))
