"""The learning rate beside what its scheduler says that it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from flashback_core.detectors.rules.rule import HABIT_ROWS, Rule
from flashback_core.detectors.rules.view import Bools, Layout, View
from flashback_core.detectors.signals import certain

__all__ = ["SAME_RATIO", "SCHEDULED", "OffSchedule"]

SCHEDULED = "exact:lr_scheduled"
SAME_RATIO = 1e-6
"""Relative difference of two rates, one of them a float32, that are the same."""
TINY = 1e-35
"""A float32 rate below this has lost its last digits."""
HABIT_CHANGES = 400
"""Rows at which the ratio changed from which it does so by habit."""


class OffSchedule(Rule):
    """The rate over what the scheduler says: a change of that ratio, after the first rows.

    A ratio that is constant from the first rows on (a factor of the group) is the run's habit; one
    that is not (a second scheduler) makes the rule silent.

    Attributes:
        ratio: The ratio of the row before; None before the first.
        n_known: Rows with a ratio.
        n_changes: Rows at which it changed.
    """

    always = True
    keep: ClassVar[tuple[str, ...]] = ("ratio", "n_known", "n_changes")

    def __init__(self) -> None:
        super().__init__()
        self.ratio: float | None = None
        self.n_known = self.n_changes = 0

    def wants(self, table_names: Sequence[str]) -> list[str]:
        """Both rates."""
        return [n for n in ("lr", SCHEDULED) if n in table_names]

    def bind(self, layout: Layout) -> None:
        """Whether a scheduler is known."""
        if not {"lr", SCHEDULED} <= set(layout.names):
            self.silence()

    def hits(self, view: View) -> Bools | None:
        """Rows whose ratio is another one; all of the first rows."""
        if self.is_silent:
            return None
        lr, scheduled = view.column("lr"), view.column(SCHEDULED)
        if self.ratio is None or self.n_known < HABIT_ROWS:
            return np.isfinite(scheduled)
        off = np.abs(lr - self.ratio * scheduled) > SAME_RATIO * np.abs(lr) + TINY
        return np.asarray(off) if off.any() else None

    def see(self, view: View, i: int) -> None:
        """Judge a ratio."""
        lr, scheduled = view.value("lr", i), view.value(SCHEDULED, i)
        if not (np.isfinite(lr) and np.isfinite(scheduled)) or max(lr, scheduled) <= TINY:
            return
        ratio = lr / scheduled if scheduled else float(np.inf)
        self.n_known += 1
        self.dirty |= self.n_known == HABIT_ROWS
        before, changed = self.ratio, self._changed(ratio)
        if not changed or not np.isfinite(ratio):
            return
        self.ratio, self.dirty = ratio, True
        if before is None:
            return
        self.n_changes += 1
        if self.n_known <= HABIT_ROWS or self.n_changes > HABIT_CHANGES:
            self.silence()
        elif not view.book.near(view.base + i, view.book.lr):
            self._off(view, i, before)

    def _changed(self, ratio: float) -> bool:
        return self.ratio is None or abs(ratio - self.ratio) > SAME_RATIO * abs(ratio)

    def _off(self, view: View, i: int, before: float) -> None:
        row, step = view.base + i, view.step(i)
        lr, scheduled = view.value("lr", i), view.value(SCHEDULED, i)
        if self.may_speak(row, "lr_off_schedule"):
            text = (
                f"The learning rate was {lr:.6g} at step {step}, where its scheduler says "
                f"{scheduled:.6g}: {lr / scheduled:.6g} times that, and {before:.6g} times until "
                "then. Something else set it."
            )
            metrics = {"lr": step, SCHEDULED: step}
            self.say(row, certain(step, "lr_off_schedule", text, metrics=metrics))
