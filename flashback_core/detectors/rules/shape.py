"""The shape of a learning rate whose scheduler is not known: kinks and turns.

A schedule that is stepped N times per update follows its own curve N times as fast from one row on:
the slope is multiplied, the level is continuous. A straight line may bend at a knot of any
piecewise schedule; a curve that goes on as its own continuation, N times as fast, is none.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from flashback_core.bounds import bounded
from flashback_core.detectors.rules.column import ColumnRule
from flashback_core.detectors.rules.schedule import SCHEDULED
from flashback_core.detectors.rules.view import Bools, Floats, Ints, View
from flashback_core.detectors.signals import certain
from flashback_core.report.model import Finding

__all__ = ["ScheduleShape"]

BEFORE, AFTER = 32, 8
"""Steps of the rate before a kink and from it on that say what it is."""
TAIL = BEFORE + AFTER + 2
STEEPER = 1.5
"""A slope multiplied by this from one row to the next is a kink."""
ROUNDING = 1e-6
"""Share of the rate below which a step may be rounding of a float32."""
CLEAR = 10.0
"""How far over rounding the bend of a curve must be."""
LIKE = 0.25
"""Share of its bend by which a curve may miss that of its continuation."""
FASTEST = 16
LARGEST_STEP = 0.1
"""Share of the rate that one step of a curve may be."""
MATCH = 0.03
"""Share of a move by which a curve may miss its continuation."""


class ScheduleShape(ColumnRule):
    """Kinks of the learning rate, and the first time it climbs after it had not.

    Attributes:
        tail: The last known rates, with their `steps`.
        n_known: Rates so far.
        turned: Whether it had climbed before, after a stretch without.
    """

    column = "lr"
    beside = (SCHEDULED,)
    keep: ClassVar[tuple[str, ...]] = ("tail", "steps", "n_known", "turned")

    def __init__(self) -> None:
        super().__init__()
        self.tail: list[float] = []
        self.steps: list[int] = []
        self.n_known = 0
        self.turned = False

    def run(self, view: View, hits: Bools | None) -> None:
        """Judge the rows that now have `AFTER` rows behind them."""
        if self.is_silent:
            return
        rate = bounded(view.column("lr"))
        known = np.isfinite(rate)
        if view.has(SCHEDULED):
            known &= ~np.isfinite(view.column(SCHEDULED))
        new, rows = rate[known], np.flatnonzero(known) + view.base
        if not len(new):
            return
        rates = np.concatenate([self.tail, new])
        steps = [*self.steps, *view.steps[known].tolist()]
        moved = np.diff(rates)
        first = max(len(self.tail) - AFTER, BEFORE)
        if len(moved) >= first + AFTER and moved.any():
            self._judge(view, rates, moved, steps, first, rows, len(self.tail))
        self.n_known += len(new)
        self.tail, self.steps = rates[-TAIL:].tolist(), steps[-TAIL:]

    def _judge(
        self, view: View, rates: Floats, moved: Floats, steps: list[int], first: int, rows: Ints,
        at: int,
    ) -> None:  # fmt: skip
        """Look at steps `first` … of the rate, of which each has `AFTER - 1` steps behind it."""
        last = len(moved) - AFTER + 1
        now, before = moved[first:last], moved[first - 1 : last - 1]
        level = ROUNDING * rates[first:last]
        size, small = np.abs(now), np.abs(before)
        kink = (size >= STEEPER * small) & (now * before > 0) & (small > level)
        kink &= size <= LARGEST_STEP * rates[first:last]
        turn = (now > level) & (before <= 0)
        for p in np.flatnonzero(kink | turn) + first:
            known = int(rows[p + AFTER - at])
            if not view.book.near(int(known) - AFTER + 1, view.book.lr):
                finding = self._look(rates, moved, int(p), steps[p + 1])
                if finding and self.may_speak(known, finding.kind):
                    self.say(known, finding)

    def _look(self, rates: Floats, moved: Floats, p: int, step: int) -> Finding | None:
        past, ahead = moved[p - BEFORE : p], moved[p : p + AFTER]
        if np.all(past <= 0) and np.all(ahead > 0):
            was, self.turned = self.turned, True
            return None if was else _turned(step)
        same = np.all(past * moved[p] > 0) and np.all(ahead * moved[p] > 0)
        steady = np.all(np.abs(ahead) >= (STEEPER - 0.1) * abs(moved[p - 1]))
        if not (same and steady):
            return None
        times = _times(rates[p - BEFORE : p + AFTER + 1], float(moved[p] / moved[p - 1]))
        return _faster(step, times) if times else _bent(step, float(moved[p] / moved[p - 1]))


def _times(rates: Floats, ratio: float) -> int:
    """How many times as fast the curve goes on as its own continuation; 0 if it does not.

    A straight line after the kink is told from the continuation by its bend, so a curve that is too
    flat to tell gives 0.
    """
    times = round(ratio)
    if not 2 <= times <= FASTEST:
        return 0
    at = np.arange(-BEFORE, 1.0) / BEFORE
    curve = np.polynomial.Polynomial.fit(at, rates[: BEFORE + 1], 3, domain=[-1, 0])
    ahead = np.arange(AFTER + 1)
    wanted = curve(times * ahead / BEFORE) - curve(0.0)
    seen = rates[BEFORE:] - rates[BEFORE]
    bend, seen_bend = (x[AFTER] - 2 * x[AFTER // 2] for x in (wanted, seen))
    is_clear = abs(bend) > CLEAR * ROUNDING * rates[BEFORE]
    is_near = np.all(np.abs(seen - wanted)[1:4] <= MATCH * np.abs(wanted)[1:4])
    return times if is_clear and is_near and abs(seen_bend - bend) <= LIKE * abs(bend) else 0


def _faster(step: int, times: int) -> Finding:
    text = (
        f"From step {step} on the learning rate follows its own curve {times} times as fast: the "
        f"scheduler is stepped {times} times per update."
    )
    return certain(step, "schedule_step", text, metrics={"lr": step})


def _bent(step: int, ratio: float) -> Finding:
    text = (
        f"At step {step} the learning rate began to move {ratio:.3g} times as fast as at the step "
        "before, with no jump: a knot of its schedule, or a schedule that is stepped too often."
    )
    return certain(step, "schedule_bent", text, metrics={"lr": step}, severity="change")


def _turned(step: int) -> Finding:
    text = (
        f"At step {step} the learning rate began to climb, which it had not done for at least "
        f"{BEFORE} steps."
    )
    return certain(step, "schedule_turned", text, metrics={"lr": step}, severity="change")
