"""A gradient norm far beyond anything it was before: an absolute check for short and sparse logs.

Where a log has a row per hundred steps, a gradient can explode before the statistics have the rows
that they need. A norm that stays a thousand times over its largest earlier value needs no baseline.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from flashback_core.baseline import trailing_median
from flashback_core.bounds import bounded
from flashback_core.detectors.rules.batched import BatchedRule
from flashback_core.detectors.rules.view import Floats, Ints
from flashback_core.report.model import Finding, MetricScore

__all__ = ["Explosion"]

SMOOTH = 5
"""Rows of the median that stands for the norm, and between it and what it is compared with."""
TIMES = 1000.0
"""How far over everything before the norm must stay."""
BEGINS = 3.0
"""How far over the rows before the climb begins."""
FIRST_ROWS = 8
TAIL = 256
"""Rows before that say what was usual."""
CONFIDENCE = 0.9


class Explosion(BatchedRule):
    """The first rows whose gradient norm stays `TIMES` over all that came before.

    Attributes:
        tail: The last norms, with their `steps`.
        peak: Largest norm before them.
        lowest: A norm that what explodes has left `TIMES` behind; 0 before there is one.
        n_known: Norms so far.
    """

    column = "grad_norm"
    keep: ClassVar[tuple[str, ...]] = ("tail", "steps", "peak", "lowest", "n_known")

    def __init__(self) -> None:
        super().__init__()
        self.tail: list[float] = []
        self.steps: list[int] = []
        self.peak, self.lowest, self.n_known = 0.0, 0.0, 0

    def take(self, values: Floats, steps: Ints, base: int) -> None:
        """Compare the norms of the next rows with all before them."""
        norm = bounded(values)
        usable = np.isfinite(norm) & (norm > 0)
        new = norm[usable]
        if not len(new):
            return
        if self.n_known + len(new) >= FIRST_ROWS + SMOOTH and new.max() > TIMES * self.lowest:
            norms = np.concatenate([self.tail, new])
            end = self._end(norms, len(self.tail))
            if end is not None:
                rows = np.flatnonzero(usable) + base
                past = [*self.steps, *steps[usable].tolist()]
                row = int(rows[end - len(self.tail)])
                self._say_at(norms, past, end, self.known(row))
        self.n_known += len(new)
        self._keep(new.tolist(), steps[usable].tolist())

    def _keep(self, new: list[float], steps: list[int]) -> None:
        """Keep at least the last `TAIL` norms, and at most twice as many."""
        self.tail += new
        self.steps += steps
        if not self.lowest and len(self.tail) > SMOOTH:
            self.lowest = self.tail[0]
        if len(self.tail) > 2 * TAIL:
            self._cut()

    def _cut(self) -> None:
        dropped = self.tail[:-TAIL]
        if dropped:
            self.peak = max(self.peak, *dropped)
            self.lowest = max(self.lowest, self.peak)
            self.tail, self.steps = self.tail[-TAIL:], self.steps[-TAIL:]

    def state(self) -> dict[str, Any]:
        """As in `Rule`."""
        self._cut()
        return super().state()

    def _end(self, norms: Floats, at: int) -> int | None:
        """Position of the first of the new norms whose median has exploded."""
        if len(norms) <= SMOOTH:
            return None
        smooth = trailing_median(norms, SMOOTH)[SMOOTH:]
        before = np.maximum(np.maximum.accumulate(norms), self.peak)[:-SMOOTH]
        ends = np.flatnonzero(smooth > TIMES * before) + SMOOTH
        first = FIRST_ROWS + SMOOTH - 1 - (self.n_known - at)
        ends = ends[(ends >= at) & (ends >= first)]
        return int(ends[0]) if len(ends) else None

    def _say_at(self, norms: Floats, steps: Sequence[int], end: int, known: int) -> None:
        row = end - SMOOTH + 1
        first = max(row - TAIL + SMOOTH, 0)
        largest = max(self.peak, float(norms[:row].max()))
        usual = BEGINS * np.median(norms[first:row])
        calm = np.flatnonzero(norms[first : end + 1] <= usual) + first
        begin = min(int(calm[-1]) + 1 if len(calm) else first, end)
        level = float(np.median(norms[row : end + 1]))
        self.say(known, _explosion(steps[begin], steps[end], level, largest))
        self.silence()


def _explosion(step: int, last: int, level: float, largest: float) -> Finding:
    text = (
        f"The gradient norm rose to {level:.3g} by step {last} and stayed there, more than "
        f"{TIMES:g} times anything before ({largest:.3g}); the climb began near step {step}."
    )
    score = MetricScore(metric="grad_norm", score=level / largest, step=step)
    return Finding(
        step=step, interval=(step, last), kind="gradient_explosion", confidence=CONFIDENCE,
        severity="bad", evidence=(text,), top_metrics=(score,),
    )  # fmt: skip
