"""A rule on updates that all become larger by one factor, from one step to the next.

Where the learning rate is not recorded, update norms tell of it: a rate that jumps multiplies those
of all groups by the same factor, while the gradients of that step are as before. An odd batch moves
the groups by different factors and the gradients first. A schedule moves little by little or down;
a warm restart comes back to where the updates were before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import exp, log
from typing import ClassVar

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from flashback_core.detectors.rules.rule import CLEAN_ROWS, HABIT_ROWS, Rule
from flashback_core.detectors.rules.view import Bools, Floats, Layout, View
from flashback_core.detectors.score_flat import middle
from flashback_core.detectors.signals import certain

__all__ = ["Leap"]

TIMES = 2.0
"""Factor from which on updates are larger."""
ALIKE = 5.0
"""Its logarithm is so many times the distance of a group's from it, at this row and usually."""
ALONE = 3.0
"""It is so many times the largest such move that all groups made in the rows before."""
LEAST = 0.5
"""Share of it by which each group has moved at least; groups that were thawed move alone."""
CALM = 0.5
"""Share of it by which the gradients may have grown or shrunk."""
BACK, HELD = 0.25, 0.5
"""Share of it that is left at most in one of the `AFTER` rows after it where it came back, and at
least in all of them where it holds."""
BEFORE, AFTER = 16, 2
"""Rows before it that say what is usual, and after it that say what becomes of it."""
GROUPS = 3
"""Groups with an update that it takes to say that they moved alike."""
LOW, HIGH = 0.2, 1.6
"""Updates below this share of the largest before, which come back to at most so many times them,
look like those of a warm restart."""
HABIT = 2
"""Leaps in the first `CLEAN_ROWS` rows that make it the way this run is."""
KEPT = BEFORE + AFTER + 1
_UPDATE, _GRADIENT = ":update_norm", ":grad_norm"


class Leap(Rule):
    """Rows whose update norms are all the same multiple of those before.

    Attributes:
        last: Logarithms of the norms in the rows before the view, updates and then gradients;
            None for what is no positive number.
        last_steps: Their steps.
        n_early: Leaps in the first `CLEAN_ROWS` rows.
        peak: Largest median over groups of the logarithm of an update norm, but for the rows that
            `last` holds; None before it is known.
    """

    always = True
    keep: ClassVar[tuple[str, ...]] = ("last", "last_steps", "n_early", "peak")

    def __init__(self) -> None:
        super().__init__()
        self.last: list[list[float | None]] = []
        self.last_steps: list[int] = []
        self.n_early = 0
        self.peak: float | None = None
        self._rows: list[int] = []
        self._n_groups = 0
        self._metric = "update_norm"

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
        groups = [name for name in layout.row if _is_of(name, _UPDATE)]
        self._n_groups = len(groups)
        if "update_norm" not in layout.metrics and groups:
            self._metric = groups[0]

    def run(self, view: View, hits: Bools | None) -> None:
        """Compare each row with those before and after it."""
        if self.is_silent or self._n_groups < GROUPS:
            return
        norms = view.matrix[self._rows]
        logs = np.log(np.where((norms > 0) & np.isfinite(norms), norms, np.nan))
        before = np.array(self.last, np.float64).reshape(-1, len(self._rows)).T
        logs = np.concatenate([before, logs], axis=1)
        steps = [*self.last_steps, *view.steps.tolist()]
        levels = _middle(logs[: self._n_groups])
        first = view.base - len(self.last_steps)
        levels[: max(HABIT_ROWS - first, 0)] = np.nan  # first updates of an optimizer may be large
        if len(steps) >= KEPT + 1:
            for i in np.flatnonzero(self._is_leap(logs, np.array(steps))).tolist():
                at = i + BEFORE + 1
                self._leap(view, first + at, steps[at], levels[: at + AFTER + 1])
        top = np.fmax.reduce(levels[:-KEPT], initial=np.nan)
        if np.isfinite(top):
            self.peak = float(top) if self.peak is None else max(self.peak, float(top))
        self.last_steps = steps[-KEPT:]
        self.last = [[None if x != x else x for x in row] for row in logs[:, -KEPT:].T.tolist()]

    def _is_leap(self, logs: Floats, steps: np.ndarray[tuple[int], np.dtype[np.int64]]) -> Bools:
        """Whether each row with `BEFORE` moves before it and `AFTER` rows after it is a leap."""
        moved, gaps = np.diff(logs, axis=1), np.diff(steps)
        n, now = moved.shape[1], slice(BEFORE, moved.shape[1] - AFTER)
        updates, gradients = moved[: self._n_groups], moved[self._n_groups :]
        found = _stands_out(updates, now)
        if len(gradients):
            if len(gradients) == len(updates):  # without momentum updates follow the gradients
                found |= _stands_out(updates - gradients, now)
            found &= ~(np.abs(_middle(gradients)[now]) > CALM * _middle(updates)[now])
        return np.asarray(found & (gaps[now] == gaps[BEFORE - 1 : n - AFTER - 1]))

    def _leap(self, view: View, row: int, step: int, levels: Floats) -> None:
        """A leap at `row`, given the median logarithms up to `AFTER` rows after it."""
        before, now, *later = levels[-AFTER - 2 :].tolist()
        size = now - before
        is_back = any(x - before <= BACK * size for x in later)
        holds = all(x - before >= HELD * size for x in later)
        if row < CLEAN_ROWS:
            self.n_early += 1
            if self.n_early >= HABIT:
                self.silence()
        elif (is_back or holds) and not self._is_excused(view, row, levels[: -AFTER - 1], now):
            self._speak(row, step, exp(size), is_back=is_back)

    def _is_excused(self, view: View, row: int, past: Floats, now: float) -> bool:
        """Whether it was declared, or looks like a warm restart."""
        if view.book.near(row, view.book.lr, view.book.relearn):
            return True
        top = max(float(np.fmax.reduce(past)), -np.inf if self.peak is None else self.peak)
        return bool(past[-1] < top + log(LOW) and now < top + log(HIGH))

    def _speak(self, row: int, step: int, factor: float, *, is_back: bool) -> None:
        if self.is_silent or not self.may_speak(row, "update_jump"):
            return
        became = f"and came back within {AFTER} steps" if is_back else "and stayed so"
        text = (
            f"The updates of all groups were {factor:.3g} times those before at step {step}, "
            f"{became}, while the gradients were as before: another learning rate, which is not "
            "recorded, or other numbers in the optimizer's state."
        )
        self.say(row + AFTER, certain(step, "update_jump", text, metrics={self._metric: step}))

    def restore(self, state: Mapping[str, object]) -> None:
        """As in `Rule`."""
        super().restore(state)
        self.last_steps = [int(step) for step in self.last_steps]


def _middle(values: Floats) -> Floats:
    """Median over groups, (groups, rows) to (rows,); NaN where fewer than `GROUPS` are known."""
    return middle(values.T, GROUPS)


def _stands_out(moved: Floats, now: slice) -> Bools:
    """Whether groups rose alike and far at each row, for what they did there and before."""
    usual, apart = _middle(moved), _middle(np.abs(moved - _middle(moved)))
    up = usual[now]
    found = (up >= log(TIMES)) & (up >= ALIKE * apart[now])
    found &= ~(moved[:, now] < LEAST * up).any(axis=0)
    past = sliding_window_view(np.stack([apart, np.abs(usual)])[:, : -AFTER - 1], BEFORE, -1)
    found &= ~(ALIKE * middle(past[0], 1) > up) & ~(ALONE * np.fmax.reduce(past[1], -1) > up)
    return np.asarray(found)


def _is_of(name: str, ending: str) -> bool:
    return name.startswith("group:") and name.endswith(ending)
