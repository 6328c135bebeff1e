"""Fewer points of a long series without losing an outlier."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

__all__ = ["min_max_rows"]

Rows = npt.NDArray[np.intp]


def min_max_rows(values: npt.NDArray[np.floating], budget: int, keep: Sequence[slice] = ()) -> Rows:
    """Rows to draw of a series: both extremes of each block, and whole stretches.

    Every block keeps its smallest and its largest finite value and its first value that is not
    finite, so a spike or a NaN of a single step stays visible at any length.

    Args:
        values: The series, shape (rows,).
        budget: About how many rows to keep; at least 8. A series that is no longer is kept whole.
        keep: Stretches of rows that are kept in full, e.g. round a finding.

    Returns:
        Row numbers, increasing, without repeats, first and last row among them.

    Examples:
        >>> spike = np.zeros(100_000)
        >>> spike[54_321] = 1.0
        >>> 54_321 in min_max_rows(spike, 200)
        True
    """
    n = len(values)
    if n <= max(budget, 8):
        return np.arange(n)
    finite = np.isfinite(values)
    starts = np.linspace(0, n, max(budget // 2, 4) + 1).astype(np.intp)[:-1]
    low = _extreme(np.where(finite, values, np.inf), starts, largest=False)
    high = _extreme(np.where(finite, values, -np.inf), starts, largest=True)
    odd = [] if finite.all() else [_first_odd(finite, starts)]
    whole = [np.arange(*s.indices(n)) for s in keep]
    return np.unique(np.concatenate([[0, n - 1], low, high, *odd, *whole]).astype(np.intp))


def _extreme(values: npt.NDArray[np.floating], starts: Rows, *, largest: bool) -> Rows:
    """Row of the extreme of each block."""
    reduce = np.maximum if largest else np.minimum
    best = reduce.reduceat(values, starts)
    lengths = np.diff([*starts, len(values)])
    hits = np.flatnonzero(values == np.repeat(best, lengths))
    blocks = np.searchsorted(starts, hits, side="right")
    _, first = np.unique(blocks, return_index=True)
    return np.asarray(hits[first], np.intp)


def _first_odd(finite: npt.NDArray[np.bool_], starts: Rows) -> Rows:
    rows = np.flatnonzero(~finite)
    _, first = np.unique(np.searchsorted(starts, rows, side="right"), return_index=True)
    return np.asarray(rows[first], np.intp)
