"""Backend: what every speed of the sketch offers to the sketcher."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from flashback_core.sketch.layout import first_units
from flashback_core.sketch.sums import StepSums

__all__ = ["Backend", "PendingSums", "ReadySums", "Watched", "dense"]


@dataclass(frozen=True, slots=True)
class Watched:
    """The tensors that a backend watches.

    Attributes:
        parameters: Leaf tensors that the optimizer updates, each once.
        groups: Group of each, an index below `n_groups`.
        n_groups: Number of groups of the schema.
        units: Number of each tensor's first unit, see `layout.Turn`.
    """

    parameters: tuple[torch.Tensor, ...]
    groups: tuple[int, ...]
    n_groups: int
    units: tuple[int, ...]

    @classmethod
    def of(
        cls, parameters: Sequence[torch.Tensor], groups: Sequence[int], n_groups: int
    ) -> Watched:
        """Watch `parameters`, numbering their units from 0."""
        units = first_units([p.numel() for p in parameters])
        return cls(tuple(parameters), tuple(groups), n_groups, units)

    def only(self, places: Sequence[int]) -> Watched:
        """The tensors at `places`, with the numbers that their units have here."""
        return Watched(
            tuple(self.parameters[i] for i in places),
            tuple(self.groups[i] for i in places),
            self.n_groups,
            tuple(self.units[i] for i in places),
        )


class PendingSums(Protocol):
    """Sums of a step that may still be on their way from a device."""

    def ready(self) -> bool:
        """Whether `result` returns without waiting."""

    def result(self) -> StepSums:
        """The sums; waits for the device if need be."""


@dataclass(frozen=True, slots=True)
class ReadySums:
    """Sums that are there already."""

    sums: StepSums

    def ready(self) -> bool:
        """Always."""
        return True

    def result(self) -> StepSums:
        """The sums."""
        return self.sums


class Backend(Protocol):
    """Turns the tensors of one step into sums, in two halves.

    The first half reads gradients (before clipping and before the update), the second half reads
    the weights after the update and keeps what it needs for the next step.
    """

    name: str

    def gradients(self, scale: float) -> None:
        """Read ``parameter.grad`` of every watched tensor, divided by `scale`."""

    def updates(self) -> PendingSums:
        """Read the weights after the step; returns the sums of both halves."""

    def replace(self, watched: Watched, kept: Sequence[int | None]) -> None:
        """Watch other tensors from now on; `kept[i]` is the old position of tensor i, or None."""

    def memory_bytes(self) -> int:
        """Memory held between steps, in bytes."""


def dense(tensor: torch.Tensor) -> torch.Tensor:
    """`tensor` detached, dense and local: sparse gradients become dense ones with zeros."""
    tensor = tensor.detach()
    if tensor.layout is not torch.strided:
        tensor = tensor.coalesce().to_dense() if tensor.is_sparse else tensor.to_dense()
    return tensor
