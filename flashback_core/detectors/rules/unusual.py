"""Unusual: something that hardly ever happens in a run begins to happen often."""

from __future__ import annotations

from collections.abc import Mapping
from math import log
from typing import Any, ClassVar

import numpy as np

from flashback_core.detectors.rules.column import ColumnRule
from flashback_core.detectors.rules.rule import REST
from flashback_core.detectors.rules.view import Bools, Floats, View
from flashback_core.detectors.signals import certain

__all__ = ["Unusual"]

KNOWN = 64
"""Cases in which it did not happen, before one in which it did can say anything."""
HABIT = 0.02
"""Share of cases from which it is the run's habit."""
SURE = 18.4
"""The tail's bound is e to the minus this: 1e-8."""


class Unusual(ColumnRule):
    """Counts cases, and those in which something happened; a rule learns the run's rate.

    It speaks where the thing happens so much more often that chance does not do it (a Chernoff
    bound on the binomial tail); a run in which it happens by habit has no such rule.

    Attributes:
        n, changed: Cases before the present stretch, and those in which it happened.
        stretch: Row and step of the first time in the stretch, its cases, its times, and the row
            of the last time; empty outside of one.
        is_said: Whether the stretch was reported.
        since: Row of the last declared change.
    """

    kind: ClassVar[str] = ""
    least: ClassVar[int] = KNOWN
    keep: ClassVar[tuple[str, ...]] = ("n", "changed", "stretch", "is_said", "since")

    def __init__(self) -> None:
        super().__init__()
        self.n = self.changed = 0
        self.stretch: list[int] = []
        self.is_said = False
        self.since = -1

    @property
    def is_ready(self) -> bool:
        """Whether there were enough cases, it hardly ever happened, and does not at present."""
        return self.n >= self.least and self._usual <= HABIT and not self.stretch

    @property
    def _usual(self) -> float:
        return (self.changed + 1) / (self.n + 2)

    def cases(self, view: View) -> Floats:
        """Cases in each row."""
        raise NotImplementedError

    def times(self, view: View) -> Floats:
        """Cases of each row in which it happened."""
        return view.column(self.column)

    def begin(self, view: View, i: int) -> tuple[int, int]:
        """Row and step at which a stretch begins that is seen at row `i` of the view."""
        return view.base + i, view.step(i)

    def texts(self, view: View, step: int, n: int, k: int) -> list[str]:
        """Evidence: it began at `step`, and happened in `k` of `n` cases since."""
        raise NotImplementedError

    def run(self, view: View, hits: Bools | None) -> None:
        """Count; look at the rows at which it happened, and at those of a stretch."""
        if self.is_silent:
            return
        cases, times = self.cases(view).clip(0), self.times(view)
        declared = [r for r in view.book.relearn if self.since < r < view.base + len(view)]
        if not self.stretch and not declared and not bool((times > 0).any()):
            self.n += int(np.nansum(cases))
            return
        for i, (n, k) in enumerate(zip(cases.tolist(), times.tolist(), strict=True)):
            if declared and declared[0] <= view.base + i:
                self._start_anew(declared.pop(0))
            self._row(view, i, 0 if n != n else int(n), 0 if k != k else max(int(k), 0))

    def _start_anew(self, row: int) -> None:
        """Forget the run's rate at a declared change: the data may be another."""
        self.n, self.changed, self.stretch, self.is_said, self.since = 0, 0, [], False, row

    def _row(self, view: View, i: int, n: int, k: int) -> None:
        row = view.base + i
        if self.stretch and row - self.stretch[4] > REST:
            self._end()
        if k and not self.stretch:
            self.stretch = [*self.begin(view, i), 0, 0, row]
        if not self.stretch:
            self.n += n
            return
        self.stretch[2] += n
        self.stretch[3] += k
        if k:
            self.stretch[4] = row
            self._judge(view, row)
        if not self.is_said and row - self.stretch[0] > REST:
            self._end()

    def _end(self) -> None:
        """The stretch is over; what was not reported is part of the run's rate."""
        if not self.is_said:
            self.n, self.changed = self.n + self.stretch[2], self.changed + self.stretch[3]
        self.stretch, self.is_said = [], False

    def _judge(self, view: View, row: int) -> None:
        _, step, n, k, _ = self.stretch
        usual = self._usual
        if self.is_said:
            self.may_speak(row, self.kind)
            return
        if self.n < self.least or usual > HABIT or _bound(k, n, usual) < SURE:
            return
        self.is_said = True
        if self.may_speak(row, self.kind):
            texts = self.texts(view, step, n, k)
            self.say(row, certain(step, self.kind, *texts, metrics={self.column: step}))

    def restore(self, state: Mapping[str, Any]) -> None:
        """As in `Rule`."""
        super().restore(state)
        self.stretch = [int(x) for x in state["stretch"]]


def _bound(k: int, n: int, share: float) -> float:
    """How far in its tail `k` of `n` lies where `share` is usual: minus the log of its bound."""
    n = max(n, k)
    if k <= n * share:
        return 0.0
    rest = (n - k) * log((n - k) / (n * (1 - share))) if n > k else 0.0
    return k * log(k / (n * share)) + rest
