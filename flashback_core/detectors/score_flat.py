"""Scores in numpy: how far each step lies from what its own run did just before, row by row.

Two kinds of test per feature, both causal and both measured in units of the run's own noise:

* *point*: the feature minus its median over the last `LEVEL` rows, over a trailing robust scale.
* *window* of w rows: the median of the last w rows minus the level before them, minus what that
  difference usually is (a steady trend cancels), over its own trailing scale. The median of 48 rows
  is the mean of three medians of 16.

Each is then divided by the largest value that the same feature had in the rows before (at least
`QUIET`), so that a heavy-tailed feature has to beat its own tail.

Rows come in stretches of any lengths, and what is kept of the past has a fixed size. The numbers
are the same whichever stretches the rows came in: what is renewed now and then is renewed at fixed
rows of the run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

from flashback_core.baseline import MAD_TO_SIGMA

__all__ = ["FlatScores", "middle"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

SCALES = {"point": 1, "window5": 5, "window16": 16, "window48": 48}
"""Rows that each test looks at."""

LEVEL = 49
"""Rows behind the level that a row is compared with."""
FIRST_LEVEL = 16
"""Rows behind the level at the very start of a run."""
SPREAD = 65
"""Rows behind the scale of a point test."""
HISTORY = 129
"""Rows behind the center and the scale of a window test."""
FIRST_SPREAD, FIRST_HISTORY = 16, 48
"""Rows behind them at the very start of a run."""
TAIL_ROWS = 160
"""Rows behind the largest value so far, to the next multiple of `MAX_EVERY`."""
FIRST_TAIL = 12
"""Rows behind it at the very start of a run."""
QUIET = {"point": 3.0, "window5": 2.5, "window16": 2.0, "window48": 2.0}
"""A largest value below this counts as this: a calm stretch makes no one sensitive."""
LEVEL_EVERY, SPREAD_EVERY, HISTORY_EVERY, MAX_EVERY = 2, 8, 64, 16
"""Rows after which the level, the scale of a point test, center and scale of a window test, and the
stretches of the largest value are renewed."""
YOUNG_ROWS, YOUNG_EVERY = 256, 16
"""First rows of a run, in which center and scale of a window test are renewed more often."""
LIMIT = 1e6

WARM_UP = FIRST_LEVEL + FIRST_SPREAD + FIRST_TAIL + SPREAD_EVERY
"""Rows before the first point test; the window tests begin later."""

_WINDOWS = tuple(rows for name, rows in SCALES.items() if name != "point")
LONGEST = max(_WINDOWS)
KEPT = {
    "x": LEVEL - 1, "level": LONGEST, "point": SPREAD - 1, "spread": 1, "recent": 32,
    "raw": HISTORY - 1, "center": LONGEST, "moved": HISTORY - 1, "scale": LONGEST,
    "largest": LONGEST,
}  # fmt: skip
"""Rows that are kept of each series."""
YOUNG = np.maximum(TAIL_ROWS / (FIRST_TAIL - 1 + np.maximum(np.arange(TAIL_ROWS), 1)), 1.0) ** 0.25
"""By how much a largest value is raised, by the number of rows that it is known for."""
LEAD = {"raw": 3, "center": 3, "moved": 3, "scale": 3, "largest": 4}
_MOST_ROWS = 256
"""Rows that are worked on at a time, which bounds the memory."""


class FlatScores:
    """Scores of rows as they come, the definition of what they are.

    Args:
        floor: Smallest scale of each feature, of shape (features, 1).
    """

    def __init__(self, floor: Floats) -> None:
        self.floor = floor
        n = len(floor)
        self.row = 0
        self._tails: dict[str, Floats] = {
            name: np.full((*([LEAD[name]] if name in LEAD else []), n, rows), np.nan)
            for name, rows in KEPT.items()
        }
        self._held: dict[str, Floats] = {}
        self._maxima = np.full((4, n, TAIL_ROWS // MAX_EVERY), np.nan)
        self._running = np.full((4, n), np.nan)
        self._n_largest = np.zeros(4, np.int64)
        self._n_seen = np.zeros(4, np.int64)

    def update(self, x: Floats, first: Ints) -> tuple[Floats, Floats]:
        """Score the next rows.

        Args:
            x: Finite values of the features, (features, rows).
            first: Row of each feature's first value, −1 if none came; (features,).

        Returns:
            Signed robust deviations, and their size over the feature's own largest so far, each
            of shape (tests, features, rows); 0 where a test has too little behind it.
        """
        if not x.size:
            self.row += x.shape[1]
            return np.zeros((4, *x.shape)), np.zeros((4, *x.shape))
        self._begin(x, first)
        parts = [
            self._stretch(x[:, i : i + _MOST_ROWS], first) for i in range(0, x.shape[1], _MOST_ROWS)
        ]
        if len(parts) == 1:
            return parts[0]
        return (
            np.concatenate([z for z, _ in parts], axis=-1),
            np.concatenate([score for _, score in parts], axis=-1),
        )

    def _stretch(self, x: Floats, first: Ints) -> tuple[Floats, Floats]:
        n = x.shape[1]
        rows = self.row + np.arange(n)
        z = np.empty((4, *x.shape))
        with np.errstate(invalid="ignore"):
            self._levels(x, rows)
            self._point(x, rows, z)
            self._window(n, rows, z)
            size = np.abs(z)
            tail = self._largest(size, n)
            score = size / tail
        age = (rows - first[:, None]).astype(np.float64)
        age[first < 0] = -1
        for k, window in enumerate(SCALES.values()):
            live = (age >= WARM_UP + 3 * window) & np.isfinite(score[k])
            z[k] = np.where(live, np.clip(z[k], -LIMIT, LIMIT), 0.0)
            score[k] = np.where(live, np.minimum(score[k], LIMIT), 0.0)
        self.row += n
        return z, score

    def _begin(self, x: Floats, first: Ints) -> None:
        """Give features that begin here a past of their first value, so that none jumps."""
        new = np.flatnonzero((first > 0) & (first >= self.row) & (first < self.row + x.shape[1]))
        for name in ("x", "level", "recent"):
            tail = self._tails[name]
            tail[new] = np.where(np.isnan(tail[new]), np.nan, x[new, :1])
        held = self._held.get("level")
        if held is not None:
            held[new] = np.where(np.isnan(held[new]), np.nan, x[new, :1])
        for name in ("raw", "moved"):
            tail = self._tails[name]
            tail[:, new] = np.where(np.isnan(tail[:, new]), np.nan, 0.0)

    def _joined(self, name: str, values: Floats) -> Floats:
        """What was kept of a series, and `values` behind it; the last rows are kept."""
        joined = np.concatenate([self._tails[name], values], axis=-1)
        self._tails[name] = joined[..., -KEPT[name] :].copy()
        return joined

    def _levels(self, x: Floats, rows: Ints) -> None:
        joined = self._joined("x", x)
        n = x.shape[1]
        level = self._renewed("level", joined, rows, LEVEL, FIRST_LEVEL, rows % LEVEL_EVERY == 0)
        self._level = self._joined("level", level)
        self._recent5 = _median_of_5(joined[:, -n - 4 :])
        self._recent = self._joined("recent", _medians(joined, n, 16, 16))

    def _point(self, x: Floats, rows: Ints, z: Floats) -> None:
        n = len(rows)
        moved = x - self._level[:, LONGEST - 1 : LONGEST - 1 + n]
        joined = self._joined("point", np.abs(moved))
        due = rows % SPREAD_EVERY == SPREAD_EVERY - 1
        spread = self._renewed("spread", joined, rows, SPREAD, FIRST_SPREAD, due)
        before = self._joined("spread", spread)[:, :n]
        z[0] = moved / (MAD_TO_SIGMA * before + self.floor)

    def _window(self, n: int, rows: Ints, z: Floats) -> None:
        recent = self._recent
        level, at = self._level, LONGEST
        recents = (
            self._recent5, recent[:, 32:],
            (recent[:, 32:] + recent[:, 16 : 16 + n] + recent[:, :n]) / 3,
        )  # fmt: skip
        raw = np.stack(
            [r - level[:, at - w : at - w + n] for r, w in zip(recents, _WINDOWS, strict=True)]
        )
        joined = self._joined("raw", raw)
        every = np.where(rows < YOUNG_ROWS, YOUNG_EVERY, HISTORY_EVERY)
        due = rows % every == every - 1
        center = self._renewed("center", joined, rows, HISTORY, FIRST_HISTORY, due)
        moved = raw - self._delayed("center", center, n)
        joined = self._joined("moved", np.abs(moved))
        scale = self._renewed("scale", joined, rows, HISTORY, FIRST_SPREAD, due)
        z[1:] = moved / (MAD_TO_SIGMA * self._delayed("scale", scale, n) + self.floor)

    def _delayed(self, name: str, values: Floats, n: int) -> Floats:
        """Each window test's series as it was before its window."""
        joined = self._joined(name, values)
        at = LONGEST
        return np.stack([joined[k, :, at - w : at - w + n] for k, w in enumerate(_WINDOWS)])

    def _renewed(
        self, name: str, joined: Floats, rows: Ints, window: int, least: int, due: Bools
    ) -> Floats:
        """The median of the last `window` rows, renewed at the rows that are `due`."""
        new = np.flatnonzero(due)
        held = self._held.get(name)
        if held is None:
            held = np.full((*joined.shape[:-1], 1), np.nan)
        known = held
        if len(new):
            ends = joined.shape[-1] - len(rows) + new
            known = np.concatenate([held, _medians_at(joined, ends, window, least)], axis=-1)
            self._held[name] = known[..., -1:].copy()
        which = np.searchsorted(new, np.arange(len(rows)), side="right")
        return np.asarray(known[..., which])

    def _largest(self, size: Floats, n: int) -> Floats:
        """Largest value before each row, at least `QUIET`, more where few rows say so."""
        largest = np.empty_like(size)
        start = 0
        while start < n:  # up to the end of each stretch of `MAX_EVERY` rows
            row = self.row + start
            stop = min(start + MAX_EVERY - row % MAX_EVERY, n)
            if row % MAX_EVERY == 0 and row:
                self._maxima = np.concatenate(
                    [self._maxima[:, :, 1:], self._running[:, :, None]], axis=-1
                )
                self._running = np.full_like(self._running, np.nan)
            part = np.fmax.accumulate(size[..., start:stop], axis=-1)
            part = np.fmax(part, self._running[..., None])
            self._running = part[..., -1].copy()
            with np.errstate(all="ignore"):
                past = np.fmax.reduce(self._maxima, axis=-1)
            largest[..., start:stop] = np.fmax(part, past[..., None])
            start = stop
        return self._tail(largest, ~np.isnan(size[:, 0]), n)

    def _tail(self, largest: Floats, known: npt.NDArray[np.bool_], n: int) -> Floats:
        seen = self._n_seen[:, None] + np.cumsum(known, axis=-1)
        self._n_seen = seen[:, -1]
        largest[np.broadcast_to((seen < FIRST_TAIL)[:, None], largest.shape)] = np.nan
        joined = self._joined("largest", largest)
        at, out = LONGEST, np.empty_like(largest)
        for k, (name, w) in enumerate(SCALES.items()):
            before = joined[k, :, at - w : at - w + n]
            there = ~np.isnan(before[0])
            age = self._n_largest[k] + np.cumsum(there)
            self._n_largest[k] = age[-1]
            young = YOUNG[np.minimum(age, len(YOUNG) - 1)]
            out[k] = np.maximum(before, QUIET[name]) * young
        return out

    def state(self) -> dict[str, Any]:
        """All that later scores depend on, arrays by name."""
        return {
            "row": self.row,
            "maxima": self._maxima,
            "running": self._running,
            "n_largest": self._n_largest.copy(),
            "n_seen": self._n_seen,
            **{f"tail/{name}": values.copy() for name, values in self._tails.items()},
            **{f"held/{name}": values.copy() for name, values in self._held.items()},
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from `state`."""
        self.row = int(state["row"])
        self._maxima, self._running = np.array(state["maxima"]), np.array(state["running"])
        self._n_largest = np.array(state["n_largest"], np.int64)
        self._n_seen = np.array(state["n_seen"], np.int64)
        for name in self._tails:
            self._tails[name] = np.array(state[f"tail/{name}"])
        self._held = {
            name.split("/")[1]: np.array(values)
            for name, values in state.items()
            if name.startswith("held/")
        }


def _medians(joined: Floats, n: int, window: int, least: int) -> Floats:
    """Median of the last `window` rows at each of the last `n` rows of `joined`."""
    total = joined.shape[-1]
    return middle(sliding_window_view(joined[..., total - n - window + 1 :], window, -1), least)


def _median_of_5(x: Floats) -> Floats:
    """Median of each five rows on end, (series, rows + 4) to (series, rows); NaN spreads."""
    a, b, c, d, e = (x[:, i : x.shape[1] - 4 + i] for i in range(5))
    low = np.maximum(np.minimum(a, b), np.minimum(c, d))
    high = np.minimum(np.maximum(a, b), np.maximum(c, d))
    # the median of low, high and e
    return np.asarray(np.maximum(np.minimum(low, high), np.minimum(np.maximum(low, high), e)))


def _medians_at(joined: Floats, ends: Ints, window: int, least: int) -> Floats:
    """The same at some rows only."""
    windows = sliding_window_view(joined, window, -1)
    first = ends - (window - 1)
    gaps = np.diff(first)
    if len(first) > 1 and np.all(gaps == gaps[0]):  # a regular view is sorted without a gather
        return middle(windows[..., first[0] : first[-1] + 1 : int(gaps[0]), :], least)
    return middle(windows[..., first, :], least)


def middle(windows: Floats, least: int) -> Floats:
    """Median along the last axis of what is known; NaN where fewer than `least` are.

    The features of a run begin together, so what is known in one is known in all.
    """
    ordered = np.sort(windows, axis=-1)  # NaN stands last
    size = ordered.shape[-1]
    if not np.isnan(ordered[..., -1]).any():
        return np.asarray((ordered[..., (size - 1) // 2] + ordered[..., size // 2]) / 2)
    count = (~np.isnan(ordered)).sum(axis=-1)
    low = np.take_along_axis(ordered, np.maximum(count - 1, 0)[..., None] // 2, -1)[..., 0]
    high = np.take_along_axis(ordered, np.minimum(count // 2, size - 1)[..., None], -1)[..., 0]
    return np.where(count >= least, (low + high) / 2, np.nan)
