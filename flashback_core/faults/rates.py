"""Faults of the learning rate that need no scheduler."""

from __future__ import annotations

from typing import Any

from flashback_core.faults.base import Fault
from flashback_core.faults.kind import Kind

__all__ = ["KINDS", "RampedRate", "ScaledRate", "ZeroRate"]


class ScaledRate(Fault):
    """Multiply every group's learning rate, from the start of a step to its update."""

    _saved: list[Any] | None = None

    def factor(self, step: int) -> float:
        """The factor at `step`."""
        return self.strength

    def _start(self, step: int) -> None:
        self._restore()
        if not self.is_active(step):
            return
        groups = self.optimizer.param_groups
        self._saved = [group["lr"] for group in groups]
        for group in groups:
            group["lr"] = group["lr"] * self.factor(step)

    def _after(self, step: int) -> None:
        # a scheduler computes the next rate from this one, so the true one is put back before it
        self._restore()

    def _undo(self) -> None:
        self._restore()

    def _restore(self) -> None:
        if self._saved is None:
            return
        for group, rate in zip(self.optimizer.param_groups, self._saved, strict=True):
            group["lr"] = rate
        self._saved = None


class ZeroRate(ScaledRate):
    """Set the learning rate to 0."""

    def factor(self, step: int) -> float:
        """Always 0."""
        return 0.0


class RampedRate(ScaledRate):
    """Raise the learning rate by and by, to `strength` times after 300 steps."""

    def factor(self, step: int) -> float:
        """From just above 1 to `strength`."""
        return 1.0 + (self.strength - 1.0) * min(1.0, (step - self.step + 1) / 300)


KINDS = (
    Kind(name="lr_spike_loud", family="rate", act=ScaledRate, strength=60.0, strengths=(6.0, 120.0),
         lasts=1, doc="learning rate × {strength}",
         behaviour="all updates jump at that step; the loss jumps one step later"),
    Kind(name="lr_spike_subtle", family="rate", act=ScaledRate, strength=4.0, strengths=(1.5, 8.0),
         doc="learning rate × {strength}",
         behaviour="all updates are larger from that step on; the loss rises slowly or not at all"),
    Kind(name="lr_x1_5", family="rate", act=ScaledRate, strength=1.5, strengths=(1.1, 2.0),
         doc="learning rate × {strength}",
         behaviour="all updates grow a little at once; the loss shows nothing"),
    Kind(name="lr_ramp", family="rate", act=RampedRate, strength=4.0, strengths=(1.5, 8.0),
         doc="learning rate rises to {strength} times over 300 steps",
         behaviour="updates drift away from the schedule with no edge"),
    Kind(name="lr_zero", family="rate", act=ZeroRate, doc="learning rate 0",
         behaviour="no weight moves any more; the loss stays where it is"),
)  # fmt: skip
