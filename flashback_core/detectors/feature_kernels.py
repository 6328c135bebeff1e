"""The costly parts of the features, compiled by numba: histograms and holes.

What they are is what `feature_stream` says in numpy; sums take the bins in their order, and no flag
lets the compiler change that, so both give the same bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

__all__ = ["fill_pass", "histogram_pass"]

_OPTIONS: dict[str, Any] = {"boundscheck": False, "error_model": "numpy", "nogil": True}
_KEPT = {**_OPTIONS, "cache": True}


@njit(**_OPTIONS)
def _moments(counts, most):
    """Mean bin and width of one histogram; NaN if it is none, or if one bin holds nearly all."""
    total, largest = 0.0, 0.0
    for count in counts:
        if not (count >= 0.0 and count < np.inf):
            return np.nan, np.nan
        total += count
    if not total > 1e-9:
        return np.nan, np.nan
    mean, square = 0.0, 0.0
    for b in range(len(counts)):
        share = counts[b] / total
        largest = share if share > largest else largest
        mean += b * share
        square += b * b * share
    if largest > most:
        return np.nan, np.nan
    variance = square - mean * mean
    return mean, np.sqrt(variance if variance > 1e-9 else 1e-9)


@njit("void(float64[:,::1],int64[:,::1],float64,float64[:,::1],float64[:,::1])", **_KEPT)
def histogram_pass(raw, bins, most, means, spreads):
    """Moments of the histograms whose bins lie in the rows `bins` of `raw`."""
    counts = np.empty(bins.shape[1])
    for h in range(bins.shape[0]):
        for i in range(raw.shape[1]):
            for b in range(bins.shape[1]):
                counts[b] = raw[bins[h, b], i]
            means[h, i], spreads[h, i] = _moments(counts, most)


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
