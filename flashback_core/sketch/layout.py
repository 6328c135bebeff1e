"""How tensors are laid out in blocks, so that every pass works in cache and allocates nothing.

A block holds one piece of a large tensor, or several small tensors of one group one behind the
other. Pieces start at multiples of 8 entries, so that packed sign bits of a piece are whole bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["BLOCK", "Block", "Piece", "Turn", "first_units", "plan_blocks"]

BLOCK = 65_536
"""Entries of a block: 256 KiB of float32, which stays in a core's second-level cache."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Entries [start, stop) of tensor `tensor`, at `offset` in the block."""

    tensor: int
    start: int
    stop: int
    offset: int

    @property
    def size(self) -> int:
        """Number of entries."""
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class Block:
    """Pieces of tensors of one group; `size` counts the padding between them too."""

    group: int
    pieces: tuple[Piece, ...]

    @property
    def size(self) -> int:
        """Entries that the block spans."""
        last = self.pieces[-1]
        return last.offset + last.size


@dataclass(frozen=True, slots=True)
class Turn:
    """Which entries the histograms count at a step.

    Tensors are cut into units of `BLOCK` entries, numbered over all tensors; of every `every` units
    one is counted, another one at each step, so that `every` steps see each entry once.
    """

    every: int = 1
    phase: int = 0

    def counts(self, unit: int) -> bool:
        """Whether the entries of `unit` are counted."""
        return unit % self.every == self.phase

    def next(self) -> Turn:
        """The turn of the step after."""
        return Turn(self.every, (self.phase + 1) % self.every)


def first_units(numels: Sequence[int]) -> tuple[int, ...]:
    """Number of the first unit of each tensor."""
    starts, unit = [], 0
    for n in numels:
        starts.append(unit)
        unit += -(-n // BLOCK)
    return tuple(starts)


def plan_blocks(
    numels: Sequence[int], groups: Sequence[int], kinds: Sequence[object], block: int = BLOCK
) -> list[Block]:
    """Blocks that cover all tensors, each entry once.

    Args:
        numels: Entries of each tensor.
        groups: Group of each tensor.
        kinds: What must be equal within a block besides the group (dtype, device).
        block: Most entries of a block, a multiple of 8.
    """
    blocks: list[Block] = []
    shared: dict[tuple[int, object], list[Piece]] = {}
    for t, n in enumerate(numels):
        if n > block // 2:
            cuts = range(0, n, block)
            blocks += [Block(groups[t], (Piece(t, a, min(a + block, n), 0),)) for a in cuts]
        elif n:
            _place(shared, blocks, (groups[t], kinds[t]), t, n, block)
    blocks += [Block(group, tuple(pieces)) for (group, _), pieces in shared.items() if pieces]
    return blocks


def _place(
    shared: dict[tuple[int, object], list[Piece]],
    blocks: list[Block],
    key: tuple[int, object],
    tensor: int,
    n: int,
    block: int,
) -> None:
    """Put a small tensor behind the others of its group, opening a new block when full."""
    pieces = shared.setdefault(key, [])
    offset = -(-(pieces[-1].offset + pieces[-1].size) // 8) * 8 if pieces else 0
    if offset + n > block:
        blocks.append(Block(key[0], tuple(pieces)))
        pieces.clear()
        offset = 0
    pieces.append(Piece(tensor, 0, n, offset))
