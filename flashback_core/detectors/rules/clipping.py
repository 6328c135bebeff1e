"""Clipping: the norm that the loop's own clipping leaves, from the factor that it applied."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from flashback_core.detectors.rules.rule import LASTING, WaitingRule
from flashback_core.detectors.rules.view import Bools, View
from flashback_core.detectors.signals import certain

__all__ = ["Clipping"]

BOUND = 1.0 - 1e-4
"""Factors of clipping below this say that the gradient was clipped."""
SAME = 0.01
"""Relative difference up to which two limits are one."""
LEARNT = 8
"""Rows clipped to one limit after which it is the loop's."""
OVER = 1.05
"""Norms so many times the limit that were not clipped are over it."""
FAR, ENOUGH = 2.0, 2
"""So many norms so far over it say that clipping has stopped; shorter ones may pass under a limit
that somebody raised."""
REACH = 16
"""Rows within which rows that were not clipped belong together."""
_FACTOR, _NORM = "exact:clip_coef", "grad_norm"


class Clipping(WaitingRule):
    """Clipping by norm leaves the same norm whenever it binds; a loop that stops it leaves more.

    Attributes:
        limit: The norm that clipping leaves; 0 before it is known.
        n_bound: Rows that were clipped to it.
        over: Rows since the last clipped one that were over it (-1: it was said), those far over
            it, and the step of the first.
        other, n_other: Another limit that rows were clipped to since, and how many.
        since: Row of the last declared change.
    """

    always = True
    gates = (_FACTOR, _NORM)
    keep: ClassVar[tuple[str, ...]] = (
        "limit", "n_bound", "over", "other", "n_other", "since",
    )  # fmt: skip

    def __init__(self) -> None:
        super().__init__()
        self.limit = self.other = 0.0
        self.n_bound = self.n_other = 0
        self.since = -1
        self.over = [0, 0, 0]

    def hits(self, view: View) -> Bools | None:
        """Rows whose factor and norm are known and that say something."""
        if len(self.gated) < 2 or self.is_silent:
            return None
        factor, norm = view.column(_FACTOR), view.column(_NORM)
        with np.errstate(invalid="ignore"):
            known = (factor > 0) & np.isfinite(norm) & (norm > 0)
            return np.asarray(known & ((factor < BOUND) | (norm > OVER * self.limit)))

    def run(self, view: View, hits: Bools | None) -> None:
        """As in `Rule`; rows that are clipped to the limit are counted at once."""
        if hits is None or not hits.any():
            return
        factor, norm = view.column(_FACTOR), view.column(_NORM)
        bound = hits & (factor < BOUND)
        bound &= np.abs(factor * norm - self.limit) <= SAME * self.limit
        last = view.base + len(view) - 1
        is_declared = any(self.since < row <= last for row in view.book.relearn)
        if self.n_bound >= LEARNT and not is_declared and bool((bound == hits).all()):
            self.n_bound, self.n_other, self.over = self.n_bound + int(bound.sum()), 0, [0, 0, 0]
            return
        super().run(view, hits)

    def see(self, view: View, i: int) -> None:
        """Learn the limit, or see that it is gone or another one."""
        if view.skipped(i):
            return
        self._relearn(view, view.base + i)
        factor, norm = float(view.column(_FACTOR)[i]), float(view.column(_NORM)[i])
        if factor < BOUND:
            self.over = [0, 0, 0]
            self._bound(view, i, factor * norm)
        elif self.n_bound >= LEARNT:
            self._free(view, i, norm)

    def _relearn(self, view: View, row: int) -> None:
        """Forget the limit at a declared change: it may be the limit's own."""
        declared = [r for r in view.book.relearn if self.since < r <= row]
        if declared:
            self.since, self.n_bound, self.n_other, self.dirty = declared[-1], 0, 0, True
            self.over = [0, 0, 0]

    def _bound(self, view: View, i: int, left: float) -> None:
        if abs(left - self.limit) <= SAME * self.limit:
            self.n_bound, self.n_other = self.n_bound + 1, 0
            return
        if self.n_bound < LEARNT:  # not learnt yet
            self.limit, self.n_bound, self.dirty = left, 1, True
            return
        is_same = abs(left - self.other) <= SAME * self.other
        self.other, self.n_other = left, self.n_other + 1 if is_same else 1
        if self.n_other == LASTING:
            step, row = view.step(i), view.base + i
            text = (
                f"Gradients have been clipped to a norm of {left:.4g} instead of {self.limit:.4g} "
                f"since about step {step}."
            )
            if self.may_speak(row, "clip_changed") and not _declared(view, row):
                metrics = {_FACTOR: step}
                finding = certain(step, "clip_changed", text, metrics=metrics, severity="change")
                self.say(row, finding)
                self.changed.append(row)
            self.limit, self.n_bound, self.n_other, self.dirty = left, LEARNT, 0, True

    def _free(self, view: View, i: int, norm: float) -> None:
        """A row over the limit that was not clipped; the first of them is the date."""
        row = view.base + i
        n, strong, first = self.over
        if n < 0:  # it was said
            return
        first = first if n else view.step(i)
        strong += norm > FAR * self.limit
        self.over = [n + 1, strong, first]
        if n + 1 < LASTING or strong < ENOUGH:
            return
        self.over = [-1, 0, 0]
        text = (
            f"Gradients were clipped to a norm of {self.limit:.4g} in {self.n_bound} steps before, "
            f"and have not been clipped since step {first}, though they are longer ({norm:.4g})."
        )
        if not _declared(view, row) and self.may_speak(row, "clip_dropped"):
            self.say(row, certain(first, "clip_dropped", text, metrics={_FACTOR: first}))


def _declared(view: View, row: int) -> bool:
    """Whether a change was declared for a row soon before `row`."""
    return any(row - REACH <= declared <= row for declared in view.book.relearn)
