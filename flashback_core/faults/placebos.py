"""Placebos: events without any effect on the numbers. A detector must not find them."""

from __future__ import annotations

import copy
from typing import Any

from flashback_core.faults.base import Fault
from flashback_core.faults.batches import map_rows
from flashback_core.faults.kind import Kind

__all__ = ["KINDS"]


class Nothing(Fault):
    """Do nothing."""


class WeightsTouched(Fault):
    """Copy all weights away and back."""

    def _start(self, step: int) -> None:
        if self.is_onset(step):
            for weight in self.parameters.values():
                weight.copy_(weight.detach().clone())


class StateReloaded(Fault):
    """Save model and optimizer and load them again, as an exact resume does."""

    def _start(self, step: int) -> None:
        if self.is_onset(step):
            self.model.load_state_dict(copy.deepcopy(self.model.state_dict()))
            self.optimizer.load_state_dict(copy.deepcopy(self.optimizer.state_dict()))


class RateSetAgain(Fault):
    """Set the learning rate to what it is."""

    def _start(self, step: int) -> None:
        if self.is_active(step):
            for group in self.optimizer.param_groups:
                group["lr"] = group["lr"] * 1.0


class BatchCopied(Fault):
    """Train on a copy of the batch."""

    def _batch(self, step: int, batch: Any) -> Any:
        return map_rows(batch, lambda values: values.clone()) if self.is_active(step) else batch


class GradientsScaledTwice(Fault):
    """Multiply the gradients by 2 and by 1/2."""

    def _gradients(self, step: int) -> None:
        if self.is_active(step):
            for gradient in self.gradients():
                gradient.copy_((gradient * 2.0) * 0.5)


_QUIET = "nothing: it changes no number"

KINDS = (
    Kind(name="placebo_nothing", family="placebo", act=Nothing, lasts=1, doc="nothing is done",
         behaviour=_QUIET),
    Kind(name="placebo_weights_touched", family="placebo", act=WeightsTouched, lasts=1,
         doc="all weights are copied away and back", behaviour=_QUIET),
    Kind(name="placebo_state_reloaded", family="placebo", act=StateReloaded, lasts=1,
         doc="model and optimizer are saved and loaded again", behaviour=_QUIET),
    Kind(name="placebo_rate_set", family="placebo", act=RateSetAgain,
         doc="the learning rate is set to what it is", behaviour=_QUIET),
    Kind(name="placebo_batch_copied", family="placebo", act=BatchCopied, needs=("batch",),
         doc="batches are copied", behaviour=_QUIET),
    Kind(name="placebo_gradients_scaled", family="placebo", act=GradientsScaledTwice,
         doc="gradients are doubled and halved", behaviour=_QUIET),
)  # fmt: skip
