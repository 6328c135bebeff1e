"""Which backend watches which tensors."""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch

from flashback_core.sketch.adam_state import AdamState
from flashback_core.sketch.backend import Backend, PendingSums, Watched
from flashback_core.sketch.compiled import load_kernels
from flashback_core.sketch.device import DeviceBackend
from flashback_core.sketch.flat import FlatBackend
from flashback_core.sketch.sharded import ShardedBackend, is_sharded
from flashback_core.sketch.sums import StepSums, add_sums, empty_sums

__all__ = ["SplitBackend", "choose_backend"]


def choose_backend(
    watched: Watched, histogram_every: int = 1, state: AdamState | None = None
) -> Backend:
    """The fastest backend for these tensors.

    On the CPU `fused` where numba is installed, else `flat`; on other devices `device`; several of
    them where the tensors are on several devices. Updates from the optimizer's state (`state`) are
    worked out by `flat` and `device`. Parameters that are sharded over ranks go through `sharded`,
    with one of these for each rank's own. ``FLASHBACK_BACKEND=flat`` leaves numba out.
    """
    if any(is_sharded(p) for p in watched.parameters):
        return ShardedBackend(watched, histogram_every, state, choose_backend)
    devices = list(dict.fromkeys(p.device for p in watched.parameters))
    if len(devices) > 1:
        return SplitBackend(watched, histogram_every, state)
    if devices and devices[0].type != "cpu":
        return DeviceBackend(watched, histogram_every, state)
    return FlatBackend(watched, histogram_every, state) if state else _cpu(watched, histogram_every)


def _cpu(watched: Watched, histogram_every: int) -> Backend:
    if os.environ.get("FLASHBACK_BACKEND") != "flat" and load_kernels() is not None:
        from flashback_core.sketch.fused import FusedBackend

        return FusedBackend(watched, histogram_every)
    return FlatBackend(watched, histogram_every)


class SplitBackend:
    """One backend per device, their sums added up.

    Args:
        watched: Tensors on any devices.
        histogram_every: See `layout.Turn`.
        state: Where updates come from instead of a snapshot.
    """

    name = "split"

    def __init__(
        self, watched: Watched, histogram_every: int = 1, state: AdamState | None = None
    ) -> None:
        self._every, self._state = histogram_every, state
        self._setup(watched)

    def _setup(self, watched: Watched) -> None:
        self._watched = watched
        self._places: dict[torch.device, list[int]] = {}
        for i, p in enumerate(watched.parameters):
            self._places.setdefault(p.device, []).append(i)
        self._parts = {
            device: choose_backend(watched.only(places), self._every, self._state)
            for device, places in self._places.items()
        }

    def gradients(self, scale: float) -> None:
        """Read the gradients on every device."""
        for part in self._parts.values():
            part.gradients(scale)

    def updates(self) -> PendingSums:
        """Read the weights on every device."""
        pending = [(self._places[d], part.updates()) for d, part in self._parts.items()]
        return _Together(pending, self._watched)

    def replace(self, watched: Watched, kept: Sequence[int | None]) -> None:
        """Watch other tensors from now on; signs are learnt anew."""
        self._setup(watched)

    def memory_bytes(self) -> int:
        """Memory held between steps, in bytes."""
        return sum(part.memory_bytes() for part in self._parts.values())


class _Together:
    """Sums of several backends."""

    def __init__(self, parts: list[tuple[list[int], PendingSums]], watched: Watched) -> None:
        self._parts, self._watched = parts, watched

    def ready(self) -> bool:
        """Whether all are there."""
        return all(pending.ready() for _, pending in self._parts)

    def result(self) -> StepSums:
        """All sums added up."""
        total = empty_sums(self._watched.n_groups, len(self._watched.parameters))
        for places, pending in self._parts:
            add_sums(total, pending.result(), places)
        return total
