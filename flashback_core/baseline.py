"""Baselines: what was normal just before a step, and how far the step lies from it.

Everything here is causal: the value at row t reads rows up to t and no later one, so the figures of
the first rows stay as they are when a run grows. Time runs along the last axis; arrays are (rows,)
or (series, rows). Rows at which a window holds too little are NaN.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

__all__ = [
    "MAD_TO_SIGMA",
    "delay",
    "fill_forward",
    "robust_z",
    "trailing_max",
    "trailing_median",
]

Floats = npt.NDArray[np.float64]

MAD_TO_SIGMA = 1.4826
"""Median absolute deviation times this is the standard deviation of a normal sample."""

BLOCK = 4096
"""Windows copied at a time, which bounds the memory of a median."""


def fill_forward(x: npt.ArrayLike) -> Floats:
    """Replace what is not finite by the last finite value before it.

    Args:
        x: Values of shape (rows,) or (series, rows).

    Returns:
        A copy. What comes before the first finite value takes that value; a series without any
        finite value becomes 0.

    Examples:
        >>> fill_forward([np.nan, 1.0, np.inf, 3.0])
        array([1., 1., 1., 3.])
    """
    values = np.array(x, np.float64, ndmin=2)
    if not values.shape[-1]:
        return values.reshape(np.shape(x))
    finite = np.isfinite(values)
    rows = np.where(finite, np.arange(values.shape[-1]), -1)
    np.maximum.accumulate(rows, axis=-1, out=rows)
    first = np.argmax(finite, axis=-1)[:, None]
    filled = np.take_along_axis(values, np.where(rows < 0, first, rows), axis=-1)
    filled[~finite.any(axis=-1)] = 0.0
    return filled.reshape(np.shape(x))


def delay(x: Floats, rows: int) -> Floats:
    """`x` as it was `rows` rows earlier; the first `rows` rows are NaN."""
    late = np.full_like(x, np.nan)
    if rows < x.shape[-1]:
        late[..., rows:] = x[..., : x.shape[-1] - rows]
    return late


def trailing_median(x: Floats, window: int, *, min_rows: int = 0, every: int = 1) -> Floats:
    """Median of the last `window` rows, the row itself included.

    Args:
        x: Finite values after any leading NaN rows, (rows,) or (series, rows).
        window: Rows in the window.
        min_rows: Rows that a shorter first window must hold; 0 asks for whole windows.
        every: Renew the median at each `every`-th row and hold it in between.

    Returns:
        Array like `x`; NaN at rows with fewer than `min_rows` rows behind them.
    """
    values, lead = _without_lead(x)
    out = np.full(values.shape, np.nan)
    n = values.shape[-1]
    for row in range(max(min_rows, 1) - 1 if min_rows else n, min(window - 1, n)):
        if row % every == 0:
            out[:, row] = np.median(values[:, : row + 1], axis=-1)
    rows = np.arange(window - 1 + -(window - 1) % every, n, every)
    for series in range(len(values)):
        out[series, rows] = _window_medians(values[series], window, rows)
    if every > 1:
        out = out[:, np.arange(n) // every * every]
    return _with_lead(out, lead, np.shape(x))


def _window_medians(values: Floats, window: int, rows: npt.NDArray[np.int64]) -> Floats:
    if not len(rows):
        return np.empty(0)
    windows = sliding_window_view(values, window)
    parts = []
    for start in range(0, len(rows), BLOCK):
        block = windows[rows[start : start + BLOCK] - window + 1]
        parts.append(_middle(block))
    return np.concatenate(parts)


def _middle(block: Floats) -> Floats:
    """Median of each row of `block`, which is sorted in place: faster than a partition here."""
    block.sort(axis=-1)
    last = block.shape[-1] - 1
    return np.asarray((block[:, last // 2] + block[:, (last + 1) // 2]) / 2)


def trailing_max(x: Floats, window: int, *, min_rows: int = 1) -> Floats:
    """Largest of the last `window` rows, the row itself included.

    Args:
        x: Finite values after any leading NaN rows, (rows,) or (series, rows).
        window: Rows in the window; the first windows are shorter.
        min_rows: Rows that a shorter first window must hold.
    """
    values, lead = _without_lead(x)
    out, span = values.copy(), 1
    while span < window:  # the largest of 2 spans is the larger of two spans
        shift = min(span, window - span)
        out[:, shift:] = np.maximum(out[:, shift:], out[:, :-shift].copy())
        span += shift
    out[:, : min_rows - 1] = np.nan
    return _with_lead(out, lead, np.shape(x))


def robust_z(x: Floats, *, window: int = 32, gap: int = 1, floor: npt.ArrayLike = 1e-9) -> Floats:
    """Distance of each row from a reference window, in robust deviations.

    Args:
        x: Finite values of shape (rows,) or (series, rows).
        window: Rows of the reference window.
        gap: Rows left out between the window and the row judged; 1 means none, so that the window
            ends at the row before.
        floor: Added to the scale, so that a constant window divides by something.

    Returns:
        Signed z of the same shape; 0 at rows without a whole reference window.
    """
    center = trailing_median(x, window)
    deviation = np.empty_like(x)
    scale_floor = np.asarray(floor, np.float64)
    for index in np.ndindex(x.shape[:-1]):
        deviation[index] = _window_deviations(x[index], center[index], window)
    z = (x - delay(center, gap)) / (MAD_TO_SIGMA * delay(deviation, gap) + scale_floor)
    return np.nan_to_num(z, nan=0.0)


def _window_deviations(values: Floats, center: Floats, window: int) -> Floats:
    """Median absolute deviation from the window's own median."""
    out = np.full(values.shape, np.nan)
    for start in range(window - 1, len(values), BLOCK):
        rows = np.arange(start, min(start + BLOCK, len(values)))
        block = sliding_window_view(values, window)[rows - window + 1]
        out[rows] = _middle(np.abs(block - center[rows, None]))
    return out


def _without_lead(x: Floats) -> tuple[Floats, int]:
    """`x` as (series, rows) without the leading rows that are NaN in every series."""
    values = np.atleast_2d(x)
    known = ~np.isnan(values).all(axis=0)
    lead = int(np.argmax(known)) if known.any() else values.shape[-1]
    return values[:, lead:], lead


def _with_lead(values: Floats, lead: int, shape: tuple[int, ...]) -> Floats:
    if not lead:
        return values.reshape(shape)
    whole = np.full((len(values), lead + values.shape[1]), np.nan)
    whole[:, lead:] = values
    return whole.reshape(shape)
