"""A rule on updates that are all larger by one factor for a single step.

Where the learning rate is not recorded, update norms tell of it: a rate that jumps for one step
multiplies the update norms of all groups by the same factor, and they come straight back, while the
gradients of that step are as before. An odd batch moves the groups by different factors and the
gradients first; a schedule does not come back at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log
from typing import Any, ClassVar

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from flashback_core.detectors.rules.rule import CLEAN_ROWS, Rule
from flashback_core.detectors.rules.view import Bools, Floats, Layout, View
from flashback_core.detectors.score_flat import middle
from flashback_core.detectors.signals import certain

__all__ = ["Pulse"]

TIMES = 2.0
"""Factor from which on updates are larger."""
ALIKE = 8.0
"""Its logarithm is so many times the distance of a group's from it, at this row and usually."""
ALONE = 3.0
"""It is so many times the largest such move that all groups made in the rows before."""
BEFORE = 16
"""Rows before it that say what is usual."""
CALM = 0.5
"""Share of it by which the gradients may have grown or shrunk."""
GROUPS = 3
"""Groups with an update that it takes to say that they moved alike."""
HABIT = 2
"""Pulses in the first `CLEAN_ROWS` rows that make it the way this run is."""
KEPT = BEFORE + 2
_UPDATE, _GRADIENT = ":update_norm", ":grad_norm"


class Pulse(Rule):
    """Rows whose update norms are all the same multiple of those before and after.

    Attributes:
        last: Logarithms of the norms in the rows before the view, updates and then gradients;
            None for what is no positive number.
        last_steps: Their steps.
        n_early: Pulses in the first `CLEAN_ROWS` rows.
    """

    always = True
    keep: ClassVar[tuple[str, ...]] = ("last", "last_steps", "n_early")

    def __init__(self) -> None:
        super().__init__()
        self.last: list[list[float | None]] = []
        self.last_steps: list[int] = []
        self.n_early = 0
        self._rows: list[int] = []
        self._n_groups = 0

    def wants(self, table_names: Sequence[str]) -> list[str]:
        """Update and gradient norms of the groups, where no learning rate is recorded."""
        if "lr" in table_names:
            return []
        return [n for n in table_names if _is_of(n, _UPDATE) or _is_of(n, _GRADIENT)]

    def bind(self, layout: Layout) -> None:
        """Which groups there are."""
        super().bind(layout)
        if "lr" in layout.row:
            return
        for ending in (_UPDATE, _GRADIENT):
            self._rows += [row for name, row in layout.row.items() if _is_of(name, ending)]
        self._n_groups = sum(_is_of(name, _UPDATE) for name in layout.row)

    def run(self, view: View, hits: Bools | None) -> None:
        """Compare each row with the one before and the one after it."""
        if self.is_silent or self._n_groups < GROUPS:
            return
        norms = view.matrix[self._rows]
        logs = np.log(np.where((norms > 0) & np.isfinite(norms), norms, np.nan))
        before = np.array(self.last, np.float64).reshape(-1, len(self._rows)).T
        logs = np.concatenate([before, logs], axis=1)
        steps = [*self.last_steps, *view.steps.tolist()]
        first = view.base - len(self.last_steps)
        if len(steps) >= KEPT + 1:
            for i in np.flatnonzero(self._is_pulse(logs, np.array(steps))).tolist():
                row = i + BEFORE + 1
                self._pulse(view, first + row, steps[row], _factor(logs[: self._n_groups], row))
        self.last_steps = steps[-KEPT:]
        self.last = [[None if x != x else x for x in row] for row in logs[:, -KEPT:].T.tolist()]

    def _is_pulse(self, logs: Floats, steps: Any) -> Bools:
        """Whether each row that has `BEFORE` moves before it and one row after it is a pulse."""
        moved = np.diff(logs, axis=1)
        updates, gradients = moved[: self._n_groups], moved[self._n_groups :]
        usual = _middle(updates)
        apart = _middle(np.abs(updates - usual))
        up = np.minimum(usual[:-1], -usual[1:])[BEFORE:]
        found = (up >= log(TIMES)) & (up >= ALIKE * np.maximum(apart[:-1], apart[1:])[BEFORE:])
        if len(gradients):
            found &= ~(np.abs(_middle(gradients)[BEFORE:-1]) > CALM * up)
        past = sliding_window_view(np.stack([apart, np.abs(usual)])[:, :-2], BEFORE, -1)
        found &= ~(ALIKE * middle(past[0], 1) > up) & ~(ALONE * np.fmax.reduce(past[1], -1) > up)
        gaps = np.diff(steps)[BEFORE:]
        return np.asarray(found & (gaps[:-1] == gaps[1:]))

    def _pulse(self, view: View, row: int, step: int, factor: float) -> None:
        if row < CLEAN_ROWS:
            self.n_early += 1
            if self.n_early >= HABIT:
                self.silence()
            return
        if view.book.near(row, view.book.lr, view.book.relearn):
            return
        if not self.is_silent and self.may_speak(row, "update_pulse"):
            text = (
                f"The updates of all groups were {factor:.3g} times those before at step {step}, "
                "and came back at the next, while the gradients were as before: the step was taken "
                "with another learning rate, which is not recorded."
            )
            metrics = {"update_norm": step}
            self.say(row + 1, certain(step, "update_pulse", text, metrics=metrics))

    def restore(self, state: Mapping[str, Any]) -> None:
        """As in `Rule`."""
        super().restore(state)
        self.last_steps = [int(step) for step in state["last_steps"]]


def _middle(values: Floats) -> Floats:
    """Median over groups, (groups, rows) to (rows,); NaN where fewer than `GROUPS` are known."""
    return middle(values.T, GROUPS)


def _factor(logs: Floats, row: int) -> float:
    """Median factor from the row before to a row."""
    return float(np.exp(np.nanmedian(logs[:, row] - logs[:, row - 1])))


def _is_of(name: str, ending: str) -> bool:
    return name.startswith("group:") and name.endswith(ending)
