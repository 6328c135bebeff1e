"""The sketch on an accelerator: torch operations only, no synchronisation within the step.

All sums of a step end in one small vector on the device. It is copied to pinned host memory behind
the step's own work, and read one or more steps later, when the copy's event says that it is there.
Histograms use `torch.histc` with fixed bounds, since `bincount` waits for the device.

Verified here on the CPU device only, where the same operations run: not verified on a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from flashback_core.schema import N_BINS
from flashback_core.sketch.adam_state import AdamState
from flashback_core.sketch.backend import PendingSums, ReadySums, Watched, dense
from flashback_core.sketch.layout import BLOCK, Block, Piece, Turn, plan_blocks
from flashback_core.sketch.sums import Floats, StepSums, empty_sums

__all__ = ["DeviceBackend"]

CHUNK = 1 << 24
"""Entries of a chunk: large, so that few kernels are launched; counts stay exact in float32."""

_WORDS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
_GRAD_FIELDS, _UPDATE_FIELDS = 5, 5


class DeviceBackend:
    """See the module. Holds a snapshot and one sign bit per parameter, on the device.

    Args:
        watched: Tensors of one device.
        histogram_every: See `layout.Turn`.
        state: Where updates come from instead of a snapshot.
        chunk: Entries of a chunk, a multiple of 8.
    """

    name = "device"

    def __init__(
        self,
        watched: Watched,
        histogram_every: int = 1,
        state: AdamState | None = None,
        chunk: int = CHUNK,
    ) -> None:
        self._state = state
        self._turn = Turn(histogram_every)
        self._chunk = chunk
        self._setup(watched)

    def _setup(self, watched: Watched) -> None:
        self._watched = watched
        self._device = watched.parameters[0].device if watched.parameters else torch.device("cpu")
        self._wide = torch.float32 if self._device.type == "mps" else torch.float64
        numels = [p.numel() for p in watched.parameters]
        kinds = [p.dtype for p in watched.parameters]
        self._blocks = plan_blocks(numels, watched.groups, kinds, self._chunk)
        kept = self._blocks if self._state is None else []
        self._snapshots = [self._gather(b, self._weights()).clone() for b in kept]
        self._signs = [
            torch.zeros(-(-b.size // 8), dtype=torch.uint8, device=self._device)
            for b in self._blocks
        ]
        self._known = [False] * len(numels)
        self._bit_values = (2 ** torch.arange(8, device=self._device)).to(torch.uint8)
        self._bit_counts = torch.tensor(
            [int(i).bit_count() for i in range(256)], dtype=torch.uint8, device=self._device
        )
        self._step = _Step(has_grad=[False] * len(numels))

    def replace(self, watched: Watched, kept: Sequence[int | None]) -> None:
        """Watch other tensors from now on, keeping the signs of those that stay."""
        signs, known = self._signs_by_tensor(), self._known
        self._setup(watched)
        for block, bits in zip(self._blocks, self._signs, strict=True):
            for piece in block.pieces:
                old = kept[piece.tensor]
                if old is not None and known[old]:
                    self._known[piece.tensor] = True
                    part = signs[old][piece.start // 8 : -(-piece.stop // 8)]
                    bits[piece.offset // 8 : piece.offset // 8 + len(part)] = part

    def _signs_by_tensor(self) -> list[torch.Tensor]:
        out = [
            torch.zeros(-(-p.numel() // 8), dtype=torch.uint8, device=self._device)
            for p in self._watched.parameters
        ]
        for block, bits in zip(self._blocks, self._signs, strict=True):
            for piece in block.pieces:
                part = out[piece.tensor][piece.start // 8 : -(-piece.stop // 8)]
                part.copy_(bits[piece.offset // 8 : piece.offset // 8 + len(part)])
        return out

    def memory_bytes(self) -> int:
        """Memory held between steps on the device, in bytes."""
        return sum(t.numel() * t.element_size() for t in (*self._snapshots, *self._signs))

    def _weights(self) -> list[torch.Tensor | None]:
        return [p.detach().reshape(-1) for p in self._watched.parameters]

    def _gather(self, block: Block, flat: Sequence[torch.Tensor | None]) -> torch.Tensor:
        """The pieces of a block one behind the other; zeros where there is nothing."""
        first = flat[block.pieces[0].tensor]
        if len(block.pieces) == 1 and first is not None:
            return first[block.pieces[0].start : block.pieces[0].stop]
        dtype = next(t.dtype for p in block.pieces if (t := flat[p.tensor]) is not None)
        parts, at = [], 0
        for p in block.pieces:
            if p.offset > at:
                parts.append(torch.zeros(p.offset - at, dtype=dtype, device=self._device))
            source = flat[p.tensor]
            parts.append(
                torch.zeros(p.size, dtype=dtype, device=self._device)
                if source is None
                else source[p.start : p.stop].to(dtype)
            )
            at = p.offset + p.size
        return torch.cat(parts)

    # -- gradients ---------------------------------------------------------------------------

    @torch.no_grad()
    def gradients(self, scale: float) -> None:
        """Queue the sums of all gradients, divided by `scale`."""
        parameters = self._watched.parameters
        grads = [None if p.grad is None else dense(p.grad).reshape(-1) for p in parameters]
        step = _Step(has_grad=[g is not None for g in grads])
        for block, bits in zip(self._blocks, self._signs, strict=True):
            if any(grads[p.tensor] is not None for p in block.pieces):
                self._gradient_block(step, block, bits, grads, scale)
        weights = self._weights()
        for block, snapshot in zip(self._blocks, self._snapshots, strict=False):
            step.changed += self._changed(block, snapshot, weights)
        step.flip_n = self._flip_counts(step.has_grad)
        self._known = [k or g for k, g in zip(self._known, step.has_grad, strict=True)]
        self._step = step

    def _changed(
        self, block: Block, snapshot: torch.Tensor, weights: Sequence[torch.Tensor | None]
    ) -> list[torch.Tensor]:
        """Per piece, the entries that are not as the step before left them."""
        word = _WORDS[snapshot.element_size()]
        now = self._gather(block, weights).contiguous()
        differs = now.view(word) != snapshot.view(word)
        return [differs[p.offset : p.offset + p.size].sum(dtype=self._wide) for p in block.pieces]

    def _gradient_block(
        self,
        step: _Step,
        block: Block,
        bits: torch.Tensor,
        grads: Sequence[torch.Tensor | None],
        scale: float,
    ) -> None:
        x = self._gather(block, grads).to(torch.float32)
        if scale != 1.0:
            x = x / scale
        found = self._statistics(x)
        present = [p for p in block.pieces if grads[p.tensor] is not None]
        flips = self._flips(x, block, bits)
        step.fields += [found.total, found.square, found.peak, found.bad, flips]
        step.histograms.append(_histogram(self._counted(x, present)))
        step.blocks.append(block)
        step.pieces += [p.tensor for p in present]
        step.parts += [found.scaled[p.offset : p.offset + p.size] for p in present]
        step.units += [found.unit] * len(present)

    def _counted(self, x: torch.Tensor, pieces: Sequence[Piece]) -> torch.Tensor:
        """The entries of a block that the histograms count at this step."""
        units = self._watched.units
        parts = (
            [
                x[p.offset + at : p.offset + min(at + BLOCK, p.size)]
                for p in pieces
                for at in range(0, p.size, BLOCK)
                if self._turn.counts(units[p.tensor] + (p.start + at) // BLOCK)
            ]
            if self._turn.every > 1
            else [x[p.offset : p.offset + p.size] for p in pieces]
        )
        if not parts:
            return x[:0]
        return torch.cat(parts) if len(parts) > 1 else parts[0]

    def _statistics(self, x: torch.Tensor) -> _Statistics:
        finite = torch.isfinite(x)
        clean = torch.where(finite, x, torch.zeros((), device=x.device))
        peak = clean.abs().amax() if clean.numel() else clean.sum()
        unit = torch.where(peak > 0, peak, torch.ones_like(peak))
        scaled = clean / unit
        wide = unit.to(self._wide)
        return _Statistics(
            scaled=scaled,
            unit=wide,
            total=scaled.sum(dtype=self._wide) * wide,
            square=scaled.square().sum(dtype=self._wide) * wide.square(),
            peak=peak.to(self._wide),
            bad=(~finite).sum().to(self._wide),
        )

    def _flips(self, x: torch.Tensor, block: Block, bits: torch.Tensor) -> torch.Tensor:
        negative, positive = self._pack(x < 0), self._pack(x > 0)
        flipped = (negative & ~bits) | (positive & bits)
        bits ^= flipped
        counts = self._bit_counts[flipped.long()]
        known = [p for p in block.pieces if self._known[p.tensor]]
        if len(known) == len(block.pieces):
            return counts.sum(dtype=self._wide)
        parts = [counts[p.offset // 8 : -(-(p.offset + p.size) // 8)] for p in known]
        total = torch.zeros((), dtype=self._wide, device=x.device)
        return sum((part.sum(dtype=self._wide) for part in parts), total)

    def _pack(self, flags: torch.Tensor) -> torch.Tensor:
        short = -flags.numel() % 8
        padded = torch.nn.functional.pad(flags, (0, short)) if short else flags
        return (padded.view(-1, 8) * self._bit_values).sum(1, dtype=torch.uint8)

    def _flip_counts(self, has_grad: Sequence[bool]) -> list[int]:
        counts = [0] * self._watched.n_groups
        for i, p in enumerate(self._watched.parameters):
            if has_grad[i] and self._known[i]:
                counts[self._watched.groups[i]] += p.numel()
        return counts

    # -- updates -----------------------------------------------------------------------------

    @torch.no_grad()
    def updates(self) -> PendingSums:
        """Queue the sums of the update and the copy of all sums to the host."""
        step, weights = self._step, self._weights()
        if self._state is not None:
            self._state.begin()
        for b, block in enumerate(self._blocks):
            now = self._gather(block, weights)
            update = self._update(b, now)
            found = self._statistics(update)
            weights_found = self._statistics(now.to(torch.float32))
            low = _low_bits_zero(now)
            step.update_fields += [found.square, found.peak, found.bad, weights_found.square, low]
            step.still += [
                (update[p.offset : p.offset + p.size] == 0).sum(dtype=self._wide)
                for p in block.pieces
            ]
            step.update_histograms.append(_histogram(self._counted(update, block.pieces)))
        self._step = _Step(has_grad=[False] * len(weights))
        self._turn = self._turn.next()
        return self._fetch(step)

    def _update(self, b: int, now: torch.Tensor) -> torch.Tensor:
        """The update of a block as float32; the snapshot, where there is one, becomes `now`."""
        if self._state is None:
            snapshot = self._snapshots[b]
            wide = torch.float64 if now.dtype == torch.float64 else torch.float32
            update = (now.to(wide) - snapshot.to(wide)).to(torch.float32)
            snapshot.copy_(now)
            return update
        update = torch.zeros(now.shape, dtype=torch.float32, device=now.device)
        for p in self._blocks[b].pieces:
            part = self._state.update(self._watched.parameters[p.tensor], p)
            update[p.offset : p.offset + p.size] = part
        return update

    def _fetch(self, step: _Step) -> PendingSums:
        scaled = torch._foreach_norm(step.parts, 2) if step.parts else []
        norms = [n.to(self._wide) * unit for n, unit in zip(scaled, step.units, strict=True)]
        pieces = [
            *(
                t.reshape(1)
                for t in (*step.fields, *step.update_fields, *norms, *step.changed, *step.still)
            ),
            *step.histograms,
            *step.update_histograms,
        ]
        if not pieces:
            return ReadySums(empty_sums(self._watched.n_groups, len(self._watched.parameters)))
        vector = torch.cat([p.to(self._wide) for p in pieces])
        sizes = [p.numel() for p in self._watched.parameters]
        layout = _Layout(step, tuple(self._blocks), self._watched, tuple(sizes))
        if self._device.type != "cuda":
            return ReadySums(layout.read(vector.cpu().numpy().astype(np.float64)))
        host = torch.empty(vector.shape, dtype=vector.dtype, pin_memory=True)
        host.copy_(vector, non_blocking=True)
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch has no types for it
        event.record()
        return _OnItsWay(host, event, layout)


def _low_bits_zero(weights: torch.Tensor) -> torch.Tensor:
    """Float32 weights with nothing in their low 16 bits; -1 where they are of another dtype."""
    if weights.dtype != torch.float32:
        return torch.full((), -1.0, device=weights.device)
    return ((weights.contiguous().view(torch.int32) & 0xFFFF) == 0).sum()


def _histogram(x: torch.Tensor) -> torch.Tensor:
    """Counts of the finite entries in the 16 magnitude bins."""
    magnitude = x.contiguous().view(torch.int32) & 0x7FFFFFFF
    bins = ((magnitude >> 24) - 48).clamp(0, N_BINS - 1)
    bins = torch.where(magnitude < 0x7F800000, bins, -1)  # outside the bounds: not counted
    return torch.histc(bins.to(torch.float32), bins=N_BINS, min=-0.5, max=N_BINS - 0.5)


@dataclass(frozen=True, slots=True)
class _Statistics:
    """Of one block, on the device. Scaled by the peak, no square overflows or vanishes."""

    scaled: torch.Tensor
    unit: torch.Tensor
    total: torch.Tensor
    square: torch.Tensor
    peak: torch.Tensor
    bad: torch.Tensor


class _Step:
    """What was queued for one step, in the order in which it will be read."""

    def __init__(self, has_grad: list[bool]) -> None:
        self.has_grad = has_grad
        self.flip_n: list[int] = []
        self.blocks: list[Block] = []
        self.fields: list[torch.Tensor] = []
        self.histograms: list[torch.Tensor] = []
        self.pieces: list[int] = []
        self.parts: list[torch.Tensor] = []
        self.units: list[torch.Tensor] = []
        self.changed: list[torch.Tensor] = []
        self.still: list[torch.Tensor] = []
        self.update_fields: list[torch.Tensor] = []
        self.update_histograms: list[torch.Tensor] = []


@dataclass(frozen=True, slots=True)
class _Layout:
    """How to read the vector of a step."""

    step: _Step
    blocks: tuple[Block, ...]
    watched: Watched
    sizes: tuple[int, ...]

    def read(self, vector: Floats) -> StepSums:
        """The sums that stand in `vector`."""
        step = self.step
        sums = empty_sums(self.watched.n_groups, len(self.sizes))
        cuts = np.cumsum(
            [
                len(step.fields),
                len(step.update_fields),
                len(step.pieces),
                len(step.changed),
                len(step.still),
                N_BINS * len(step.histograms),
            ]
        )
        fields, updates, norms, changed, still, grad_bins, update_bins = np.split(vector, cuts)
        self._read_gradients(sums, fields, grad_bins)
        self._read_updates(sums, updates, update_bins)
        for tensor, norm in zip(step.pieces, norms, strict=True):
            before = sums.tensor_sumsq[tensor]
            sums.tensor_sumsq[tensor] = norm**2 if np.isnan(before) else before + norm**2
        pieces = [p for block in self.blocks for p in block.pieces]
        for piece, count in zip(pieces, changed, strict=False):  # none before the first gradient
            sums.changed[piece.tensor] += int(count)
        for piece, count in zip(pieces, still, strict=True):
            sums.still[piece.tensor] += int(count)
            sums.counts[self.watched.groups[piece.tensor], 7] += int(count)
        for i, has in enumerate(step.has_grad):
            if has and self.sizes[i] == 0:
                sums.tensor_sumsq[i] = 0.0
        return sums

    def _read_gradients(self, sums: StepSums, fields: Floats, bins: Floats) -> None:
        for block, (total, square, peak, bad, flips), counts in zip(
            self.step.blocks,
            fields.reshape(-1, _GRAD_FIELDS),
            bins.reshape(-1, N_BINS),
            strict=True,
        ):
            g = block.group
            n = sum(p.size for p in block.pieces if self.step.has_grad[p.tensor])
            sums.moments[g, :2] += total, square
            sums.peaks[g, 0] = max(sums.peaks[g, 0], peak)
            sums.counts[g, :3] += np.array([n, bad, flips], np.int64)
            sums.bins[0] += counts.astype(np.int64)
        for g, n in enumerate(self.step.flip_n):
            sums.counts[g, 3] += n

    def _read_updates(self, sums: StepSums, fields: Floats, bins: Floats) -> None:
        for block, (square, peak, bad, weight, low), counts in zip(
            self.blocks, fields.reshape(-1, _UPDATE_FIELDS), bins.reshape(-1, N_BINS), strict=True
        ):
            g = block.group
            n = sum(p.size for p in block.pieces)
            sums.moments[g, 2:] += square, weight
            sums.peaks[g, 1] = max(sums.peaks[g, 1], peak)
            sums.counts[g, 4:7] += np.array([n, bad, n], np.int64)
            padding = block.size - n
            sums.counts[g, 8] += int(low) - padding if low >= 0 else 0
            sums.bins[1] += counts.astype(np.int64)


@dataclass(frozen=True, slots=True)
class _OnItsWay:
    """Sums in pinned memory behind an event."""

    host: torch.Tensor
    event: torch.cuda.Event
    layout: _Layout

    def ready(self) -> bool:
        """Whether the copy has arrived."""
        return bool(self.event.query())  # type: ignore[no-untyped-call]  # as above

    def result(self) -> StepSums:
        """The sums; waits for the copy."""
        self.event.synchronize()
        return self.layout.read(self.host.numpy().astype(np.float64))
