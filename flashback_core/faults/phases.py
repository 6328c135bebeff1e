"""The phases of one optimizer step, in which faults and healthy events act.

====================  ==============================================================
``on_step_start``     before the batch is drawn: weights, state, settings, lr
``batch``             the batch that the step trains on
``replica``           around forward and backward of one part of the batch
``on_backward``       after backward, before unscaling: gradients carry the loss scale
``on_gradients``      after backward and unscaling, before clipping
``before_update``     after clipping, just before the optimizer moves the weights
``after_update``      just after
``logged_loss``       the loss as the loop logs it
====================  ==============================================================
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

__all__ = ["Phases"]


class Phases:
    """The phases of one optimizer step, each doing nothing."""

    def on_step_start(self, step: int) -> None:
        """Act before the batch of `step` is drawn."""

    def batch(self, step: int, batch: Any) -> Any:
        """The batch to train on in place of `batch`."""
        return batch

    def replica(self, step: int, part: int, parts: int) -> AbstractContextManager[None]:
        """Surround forward and backward of part `part` of `parts` of the batch."""
        return nullcontext()

    def on_backward(self, step: int) -> None:
        """Act on the gradients before they are unscaled."""

    def on_gradients(self, step: int) -> None:
        """Act on the gradients before clipping."""

    def before_update(self, step: int) -> None:
        """Act just before the optimizer moves the weights."""

    def after_update(self, step: int) -> None:
        """Act just after the optimizer moved the weights."""

    def logged_loss(self, step: int, loss: float) -> float:
        """The loss that the loop logs in place of `loss`."""
        return loss
