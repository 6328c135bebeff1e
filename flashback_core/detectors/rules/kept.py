"""A rule on gradients that nobody took away: they add up from step to step."""

from __future__ import annotations

from typing import ClassVar

from flashback_core.detectors.rules.column import ColumnRule
from flashback_core.detectors.rules.rule import HABIT_ROWS
from flashback_core.detectors.rules.view import Bools, View
from flashback_core.detectors.signals import certain

__all__ = ["KeptGradients"]


class KeptGradients(ColumnRule):
    """The gradient tensors of the step before, in a loop that had new ones at every step.

    A loop that keeps its tensors and sets them to zero has the same ones from the start; it has no
    such rule, since no value tells whether it did.

    Attributes:
        n_new: Rows with new tensors so far.
    """

    column = "exact:grads_kept"
    kind: ClassVar[str] = "gradients_kept"
    keep: ClassVar[tuple[str, ...]] = ("n_new",)

    def __init__(self) -> None:
        super().__init__()
        self.n_new = 0

    @property
    def is_ready(self) -> bool:
        """Whether kept tensors would be told, and none were so far."""
        return self.n_new >= HABIT_ROWS and not self.voices and not self.is_silent

    def run(self, view: View, hits: Bools | None) -> None:
        """Count rows with new tensors; look at those with kept ones."""
        if self.is_silent:
            return
        kept = view.column(self.column)
        if not bool((kept == 1).any()):
            self.n_new += int((kept == 0).sum())
            return
        for i, value in enumerate(kept.tolist()):
            self.n_new += value == 0
            if value == 1:
                self._kept(view, i)

    def _kept(self, view: View, i: int) -> None:
        if self.n_new < HABIT_ROWS:
            self.silence()
        elif not self.is_silent and self.may_speak(view.base + i, self.kind):
            step = view.step(i)
            text = (
                f"Step {step} used the gradient tensors of the step before it, which every step "
                "before had replaced: without zero_grad the backward pass adds to them."
            )
            self.say(view.base + i, certain(step, self.kind, text, metrics={self.column: step}))
