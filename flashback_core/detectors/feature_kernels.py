"""The costly parts of the features, compiled by numba: histograms and holes.

What they are is what `feature_stream` and `histograms` say in numpy; sums take the bins in their
order, and no flag lets the compiler change that, so both give the same bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

__all__ = ["fill_pass", "histogram_pass"]

_OPTIONS: dict[str, Any] = {"boundscheck": False, "error_model": "numpy", "nogil": True}
_KEPT = {**_OPTIONS, "cache": True}


@njit(**_OPTIONS)
def _moments(counts, bounds, lump):
    """Mean bin and width of one histogram, NaN if it is none, and whether it is a `lump`."""
    most, spilt, crossing = bounds
    total, one, two, before = 0.0, 0.0, 0.0, 0.0
    for count in counts:
        if not (count >= 0.0 and count < np.inf):
            lump[0], lump[1] = 0.0, 0.0
            return np.nan, np.nan, False
        total += count
    if not total > 1e-9:
        lump[0], lump[1] = 0.0, 0.0
        return np.nan, np.nan, False
    mean, square = 0.0, 0.0
    for b in range(len(counts)):
        share = counts[b] / total
        one = share if share > one else one
        if b:
            two = share + before if share + before > two else two
        before = share
        mean += b * share
        square += b * b * share
    lump[1] += 1.0
    if one > most:
        lump[0], lump[1] = one, 0.0
    elif not (two >= lump[0] - spilt and lump[1] <= crossing):
        lump[0] = 0.0
    if not lump[0] > 0.0:
        lump[1] = 0.0
    variance = square - mean * mean
    return mean, np.sqrt(variance if variance > 1e-9 else 1e-9), lump[0] > 0.0


@njit(
    "void(float64[:,::1],int64[:,::1],UniTuple(float64,3),float64[:,::1],float64[:,::1],"
    "float64[:,::1],boolean[:,::1])",
    **_KEPT,
)
def histogram_pass(raw, bins, bounds, lumps, means, spreads, silent):
    """Moments of the histograms whose bins lie in the rows `bins` of `raw`; which are lumps."""
    counts = np.empty(bins.shape[1])
    for h in range(bins.shape[0]):
        for i in range(raw.shape[1]):
            for b in range(bins.shape[1]):
                counts[b] = raw[bins[h, b], i]
            means[h, i], spreads[h, i], silent[h, i] = _moments(counts, bounds, lumps[h])


@njit("void(float64[:,::1],float64[::1],int64[::1],int64)", **_KEPT)
def fill_pass(values, last, first, row):
    """Fill what is not finite from the rows before; note the first values and the last."""
    for f in range(values.shape[0]):
        held = last[f]
        for i in range(values.shape[1]):
            value = values[f, i]
            if np.isfinite(value):
                held = value
                if first[f] < 0:
                    first[f] = row + i
                    values[f, :i] = value
            else:
                values[f, i] = held
        last[f] = held
