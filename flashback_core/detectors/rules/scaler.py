"""Rules on skipped steps and on a loss of exactly zero."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from flashback_core.bounds import LARGEST
from flashback_core.detectors.rules.rule import Rule
from flashback_core.detectors.rules.view import Bools, Floats, View
from flashback_core.detectors.signals import certain

__all__ = ["SkipLoop", "ZeroLoss"]

SKIP_LOOP = 20
"""Skipped steps in a row that search for no loss scale any more: 2**16 is 1 after 16 of them."""
LOOK_BACK = 8
"""Losses before one of exactly zero that say whether it was small."""


class SkipLoop(Rule):
    """Skipped steps that do not end."""

    gates = ("exact:step_skipped",)
    keep: ClassVar[tuple[str, ...]] = ("streak", "last", "first_step")

    def __init__(self) -> None:
        super().__init__()
        self.streak, self.last, self.first_step = 0, -2, 0

    def see(self, view: View, i: int) -> None:
        """Count skipped steps on end."""
        if not view.skipped(i):
            return
        row = view.base + i
        if row != self.last + 1:
            self.streak, self.first_step = 0, view.step(i)
        self.streak, self.last = self.streak + 1, row
        if self.streak >= SKIP_LOOP and self.may_speak(row, "skip_loop"):
            step = self.first_step
            text = (
                f"{SKIP_LOOP} steps in a row were skipped from step {step} on: nothing is learnt."
            )
            metrics = {"exact:step_skipped": step}
            self.say(row, certain(step, "skip_loop", text, metrics=metrics))


class ZeroLoss(Rule):
    """A loss of exactly 0.0 right after one that was not small: filtered NaN, or no targets."""

    gates = ("loss",)
    keep: ClassVar[tuple[str, ...]] = ("tail",)

    def __init__(self) -> None:
        super().__init__()
        self.tail: Floats = np.empty(0)

    def hits(self, view: View) -> Bools | None:
        """Rows whose loss is zero."""
        return np.asarray(view.column("loss") == 0.0) if self.gated else None

    def quiet(self) -> dict[str, tuple[float, float]]:
        """Losses above zero."""
        return dict.fromkeys(self.gated, (np.finfo(np.float64).smallest_subnormal, np.inf))

    def see(self, view: View, i: int) -> None:
        """Judge a zero by the losses before it."""
        before = np.concatenate([self.tail, view.column("loss")[max(i - LOOK_BACK, 0) : i]])
        before = np.clip(before[-LOOK_BACK:], -LARGEST, LARGEST)
        before = before[np.isfinite(before) & (np.abs(before) < LARGEST)]
        if len(before) < 4 or np.median(before) <= 1e-2 or np.min(np.abs(before)) <= 1e-4:
            self.voices.get("loss_zero", [0, 0])[1] = view.base + i
            return
        if self.may_speak(view.base + i, "loss_zero"):
            step = view.step(i)
            text = (
                f"The loss was exactly 0.0 at step {step} after {np.median(before):.4g}: a NaN "
                "that was filtered out, or a batch without targets."
            )
            self.say(view.base + i, certain(step, "loss_zero", text, metrics={"loss": step}))

    def after(self, view: View) -> None:
        """Keep the last losses."""
        if self.gated:
            loss = view.column("loss")[-LOOK_BACK:]
            short = LOOK_BACK - len(loss)
            self.tail = np.concatenate([self.tail[-short:], loss]) if short else loss.copy()

    def state(self) -> dict[str, Any]:
        """As in `Rule`, without numbers that JSON does not know."""
        tail = [x if np.isfinite(x) else None for x in self.tail.tolist()]
        return {**super().state(), "tail": tail}

    def restore(self, state: Mapping[str, Any]) -> None:
        """As in `Rule`."""
        super().restore(state)
        self.tail = np.array([np.nan if x is None else float(x) for x in state["tail"]])
