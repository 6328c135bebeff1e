"""History: the last known learning rates of a series, cheap to add to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from flashback_core.bounds import bounded
from flashback_core.detectors.rules.schedule import SAME_RATIO, SCHEDULED
from flashback_core.detectors.rules.view import Floats, Ints, View

__all__ = ["TAIL", "History"]

TAIL = 42
"""Rates that are kept at least: what may be needed of the past."""
ROOM = 1024
COLUMNS = ("lr", SCHEDULED, "exact:epoch")


class History:
    """Rates, what the scheduler said, epochs and steps of the last rows with a known rate.

    Attributes:
        n: How many there are, at least `TAIL` if there were so many.
        n_known: How many there ever were.
    """

    def __init__(self) -> None:
        self._data: Floats = np.full((len(COLUMNS) + 1, ROOM), np.nan)
        self._top = 0.0
        self.n = self.n_known = 0

    def add(self, view: View, rows: Ints | slice, dropping: Callable[[int, int], None]) -> None:
        """Add rows of a view, at most 512.

        Args:
            view: The rows; their rates are known.
            rows: Which of them.
            dropping: Called with the number of rates and how many positions each will move, before
                old ones are dropped.
        """
        steps = view.steps[rows]
        if self.n + len(steps) > ROOM:
            dropping(self.n, self.n - TAIL)
            self._drop()
        new = self._data[:, self.n : self.n + len(steps)]
        for i, name in enumerate(COLUMNS):
            if name in view.layout.row:
                new[i] = view.matrix[view.layout.row[name]][rows]
        new[-1] = steps
        self.n += len(steps)
        self.n_known += len(steps)

    def _drop(self) -> None:
        """Keep the last `TAIL`."""
        cut = self.n - TAIL
        self._top = max(self._top, float(self.rates[:cut].max(initial=0.0)))
        self._data[:, :TAIL] = self._data[:, cut : self.n].copy()
        self.n = TAIL

    @property
    def rates(self) -> Floats:
        """The rates, bounded."""
        return bounded(self._data[0, : self.n])

    @property
    def epochs(self) -> Floats:
        """Their epochs; NaN where none is known."""
        return self._data[2, : self.n]

    @property
    def steps(self) -> Floats:
        """Their steps."""
        return self._data[-1, : self.n]

    def top(self, position: int) -> float:
        """Largest rate before `position`."""
        return max(self._top, float(self.rates[:position].max(initial=0.0)))

    def follows(self, position: int) -> bool:
        """Whether the rate moved there as its scheduler did."""
        (before, now), (planned_before, planned) = self._data[:2, position - 1 : position + 1]
        if not (planned > 0 and planned_before > 0 and now > 0):
            return False
        ratio = now / planned * planned_before / max(before, 1e-300)
        return bool(abs(ratio - 1) <= 2 * SAME_RATIO)

    def state(self) -> dict[str, Any]:
        """The last `TAIL`, as plain JSON values."""
        cut = max(self.n - TAIL, 0)
        values = self._data[:, cut : self.n].tolist()
        plain = [[x if np.isfinite(x) else None for x in row] for row in values]
        return {"n_known": self.n_known, "top": self.top(cut), "values": plain}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a state."""
        values = np.array(state["values"], np.float64)  # None becomes NaN
        self.n, self.n_known, self._top = values.shape[1], int(state["n_known"]), state["top"]
        self._data[:, : self.n] = values
