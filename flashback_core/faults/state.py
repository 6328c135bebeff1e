"""Faults of the optimizer's state: lost, reset or damaged moments."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from flashback_core.errors import ModelError
from flashback_core.faults.base import Fault
from flashback_core.faults.gradients import ElementFault
from flashback_core.faults.kind import Kind
from flashback_core.faults.places import clear_bits, flip_bit

__all__ = ["FIRST_MOMENTS", "KINDS", "SECOND_MOMENTS", "StateFault"]

FIRST_MOMENTS = ("exp_avg", "momentum_buffer")
SECOND_MOMENTS = ("exp_avg_sq", "square_avg")


class StateFault(Fault):
    """Zero some entries of the optimizer's state, once. Subclasses choose them."""

    def chosen(self, key: str, value: Tensor) -> bool:
        """Whether the entry `key` is lost."""
        return True

    def _start(self, step: int) -> None:
        if not self.is_onset(step):
            return
        found = [value for key, value in self._entries() if self.chosen(key, value)]
        if not found:
            msg = (
                f"fault {self.kind!r} at step {step} finds nothing of the kind in the state of "
                f"{type(self.optimizer).__name__}; take a later step or another optimizer"
            )
            raise ModelError(msg)
        for value in found:
            value.zero_()

    def _entries(self) -> Iterator[tuple[str, Tensor]]:
        for state in self.optimizer.state.values():
            for key, value in state.items():
                if isinstance(value, Tensor):
                    yield key, value


class MomentsLost(StateFault):
    """Zero the moments but not the step count, so that no bias correction makes up for it."""

    def chosen(self, key: str, value: Tensor) -> bool:
        """All but the step count."""
        return key != "step"


class FirstMomentLost(StateFault):
    """Zero the momentum only."""

    def chosen(self, key: str, value: Tensor) -> bool:
        """The first moment."""
        return key in FIRST_MOMENTS


class CountLost(StateFault):
    """Zero the step count and keep the moments."""

    def chosen(self, key: str, value: Tensor) -> bool:
        """The step count."""
        return key == "step"


class SecondMomentFlip(ElementFault):
    """Raise one element of the second moment out of all bounds: flip its highest exponent bit."""

    def _start(self, step: int) -> None:
        if self.is_onset(step):
            moment = self._moment()
            self.damage(moment)
            if not bool(torch.isfinite(moment).all()):
                flip_bit(moment, self.element, 23)

    def damage(self, moment: Tensor) -> None:
        """Damage the element in place."""
        flip_bit(moment, self.element, self.bit)

    def _moment(self) -> Tensor:
        state = self.optimizer.state.get(self.parameters[self.tensor], {})
        found = [state[key] for key in SECOND_MOMENTS if key in state]
        if not found:
            msg = (
                f"fault {self.kind!r} acts on the second moment of {self.tensor!r}, which "
                f"{type(self.optimizer).__name__} does not keep at step {self.step}; take Adam or "
                "RMSprop and a step from 1"
            )
            raise ModelError(msg)
        moment: Tensor = found[0]
        return moment


class SecondMomentLow(SecondMomentFlip):
    """Make one element of the second moment tiny: clear three exponent bits."""

    def damage(self, moment: Tensor) -> None:
        """Clear bits 26 to 28."""
        clear_bits(moment, self.element, (26, 27, 28))


KINDS = (
    Kind(name="opt_lost", family="state", act=StateFault, lasts=1, needs=("state",),
         doc="the optimizer's state is lost, its step count too",
         behaviour="updates as at the very first step: larger than usual for some steps"),
    Kind(name="opt_lost_nobc", family="state", act=MomentsLost, lasts=1, needs=("second_moment",),
         doc="the moments are lost and the step count is kept",
         behaviour="updates several times too large for some steps"),
    Kind(name="m_lost", family="state", act=FirstMomentLost, lasts=1, needs=("first_moment",),
         doc="the momentum is lost",
         behaviour="updates are small for some steps while the momentum builds up"),
    Kind(name="adam_step_reset", family="state", act=CountLost, lasts=1, needs=("betas",),
         doc="the optimizer's step count is lost and its moments are kept",
         behaviour="the bias correction blows updates up or down for some steps"),
    Kind(name="v_flip_up", family="state", act=SecondMomentFlip, bits=(30, 30), lasts=1,
         needs=("second_moment",),
         doc="bit {bit} of second-moment element {element} of {tensor} flipped",
         behaviour="that weight stands still for thousands of steps"),
    Kind(name="v_flip_down", family="state", act=SecondMomentLow, bits=(28, 28), lasts=1,
         needs=("second_moment",),
         doc="exponent of second-moment element {element} of {tensor} cleared",
         behaviour="one weight takes one far too large step"),
)  # fmt: skip
