"""Scores by numba: the numbers of `FlatScores` to the last bit, in one pass over the rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from flashback_core.detectors.compiled import Kernels
from flashback_core.detectors.score_flat import (
    FIRST_HISTORY,
    FIRST_SPREAD,
    HISTORY,
    HISTORY_EVERY,
    KEPT,
    YOUNG,
    YOUNG_EVERY,
    YOUNG_ROWS,
    FlatScores,
    middle,
)

__all__ = ["FusedScores"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_WIDER = ("x", "point", "raw", "moved")
"""Series of which one row more is there: the one that leaves its window next, or the window."""
_RINGS = ("raw", "moved")
"""Series whose value of row t lies at t modulo their size."""
_HAS_HALVES = HISTORY == 2 * HISTORY_EVERY + 1 and HISTORY_EVERY & (HISTORY_EVERY - 1) == 0
_HELD = ("level", "spread", "center", "scale")
"""Series whose last value holds until it is renewed."""


class FusedScores:
    """What `FlatScores` is, with the same arguments, results and state.

    The windows of the point test are kept in order beside the values, and are put in order anew
    where these were changed. Center and scale of a window test are renewed between two passes.

    Args:
        flat: Whose rows this one goes on from.
        kernels: The compiled functions.
    """

    row: int
    _series: dict[str, Floats]
    _maxima: Floats
    _running: Floats
    _n_seen: Ints
    _n_largest: Ints
    _ordered: Floats
    _counts: Ints
    _halves: dict[str, tuple[int, Floats]]

    def __init__(self, flat: FlatScores, kernels: Kernels) -> None:
        self._kernels = kernels
        self._floor = np.ascontiguousarray(flat.floor)
        self.restore(flat.state())

    def update(self, x: Floats, first: Ints) -> tuple[Floats, Floats]:
        """As `FlatScores.update`."""
        n = x.shape[1]
        z, score = np.empty((4, *x.shape)), np.empty((4, *x.shape))
        if not x.size:
            self.row += n
            return z, score
        x, first = np.ascontiguousarray(x, np.float64), np.ascontiguousarray(first, np.int64)
        self._begin(x, first)
        done = 0
        while done < n:
            every = YOUNG_EVERY if self.row < YOUNG_ROWS else HISTORY_EVERY
            due = every - self.row % every
            size = min(due, n - done)
            self._kernels.score_pass((
                self.row, done, size, x, first, self._floor, YOUNG,
                *self._series.values(),  # in the order of `KEPT`
                self._maxima, self._running, self._n_seen, self._n_largest,
                self._ordered, self._counts, z, score,
            ))  # fmt: skip
            self.row, done = self.row + size, done + size
            if size == due:
                self._renew()
        return z, score

    def _renew(self) -> None:
        """Center and scale of the window tests, after a row at which they are due."""
        self._series["center"][..., -1] = self._median("raw", FIRST_HISTORY)
        self._series["scale"][..., -1] = self._median("moved", FIRST_SPREAD)

    def _median(self, name: str, least: int) -> Floats:
        """Median of a ring; but for its oldest value, of two halves that were put in order once."""
        ring = self._series[name]
        if self.row % HISTORY_EVERY or not _HAS_HALVES:
            return middle(ring, least)
        last = ring.take((self.row + np.arange(-HISTORY_EVERY, 0)) % HISTORY, axis=-1)
        new, oldest = np.sort(last, axis=-1), ring[..., self.row % HISTORY].copy()
        row, before = self._halves.get(name, (-1, new))
        self._halves[name] = (self.row, new)
        is_known = row == self.row - HISTORY_EVERY and not np.isnan(before[..., -1]).any()
        if not is_known or np.isnan(new[..., -1]).any() or np.isnan(oldest).any():
            return middle(ring, least)
        out = np.empty(oldest.shape)
        self._kernels.median_pass(before, new, oldest, out)
        return out

    def _begin(self, x: Floats, first: Ints) -> None:
        """Give features that begin here a past of their first value, so that none jumps."""
        new = np.flatnonzero((first > 0) & (first >= self.row) & (first < self.row + x.shape[1]))
        if not len(new):
            return
        for name in ("x", "level", "recent"):
            tail = self._series[name]
            tail[new] = np.where(np.isnan(tail[new]), np.nan, x[new, :1])
        for name in ("raw", "moved"):
            tail = self._series[name]
            tail[:, new] = np.where(np.isnan(tail[:, new]), np.nan, 0.0)
        self._halves.clear()
        self._sort()

    def _sort(self) -> None:
        series = self._series
        self._kernels.sort_windows((series["x"], series["point"], self._ordered, self._counts))

    def state(self) -> dict[str, Any]:
        """As `FlatScores.state`, which can go on from it."""
        series = self._series
        last = {k: np.roll(v, -self.row, -1) if k in _RINGS else v for k, v in series.items()}
        tails = {f"tail/{name}": last[name][..., -rows:] for name, rows in KEPT.items()}
        held = {f"held/{name}": series[name][..., -1:] for name in _HELD}
        arrays = {"maxima": self._maxima, "running": self._running, **tails, **held}
        counts = {"n_largest": self._n_largest, "n_seen": self._n_seen}
        return {"row": self.row, **{k: v.copy() for k, v in (arrays | counts).items()}}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a state of this or of `FlatScores`."""
        self.row = int(state["row"])
        self._maxima, self._running = _own(state["maxima"]), _own(state["running"])
        self._n_seen = np.array(state["n_seen"], np.int64)
        self._n_largest = np.array(state["n_largest"], np.int64)
        self._series = {name: _wider(state[f"tail/{name}"], name in _WIDER) for name in KEPT}
        for name in _RINGS:
            self._series[name] = np.roll(self._series[name], self.row, -1)
        self._halves = {}
        n = len(self._floor)
        self._ordered = np.empty((n, 3, self._kernels.width))
        self._counts = np.empty((n, 3), np.int64)
        self._sort()


def _own(values: npt.ArrayLike) -> Floats:
    return np.array(values, np.float64, order="C")


def _wider(tail: npt.ArrayLike, is_wider: bool) -> Floats:
    """A copy of a tail, behind one value more that is not known."""
    values = _own(tail)
    if not is_wider:
        return values
    return np.concatenate([np.full_like(values[..., :1], np.nan), values], axis=-1)
