"""The statistics of a block of rows in one pass, compiled by numba.

What they are is what `reduction` says in numpy. Sums take the members in their order, and no flag
lets the compiler change that, so both give the same bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

__all__ = ["reduce_pass"]

_OPTIONS: dict[str, Any] = {"boundscheck": False, "error_model": "numpy", "nogil": True}
_KEPT = {**_OPTIONS, "cache": True}


@njit(**_OPTIONS)
def _add_top(values, top, rest):
    """Put one value per row among the largest of its row, which `top` holds in falling order."""
    for i in range(len(values)):
        rest[i] = values[i]
    for j in range(top.shape[0]):
        largest = top[j]
        for i in range(len(values)):
            a, b = largest[i], rest[i]
            largest[i] = a if a > b else b
            rest[i] = b if a > b else a


@njit(**_OPTIONS)
def _add_square(values, cap, total):
    for i in range(len(values)):
        value = values[i] if values[i] < cap else cap
        total[i] += value * value


@njit(**_OPTIONS)
def _consensus(z, score, groups, i, ordered):
    """Absolute median of the signed scores that are not 0 in row `i`; 0 of fewer than three."""
    count = 0
    for g in groups:
        value = score[g, i] if z[g, i] > 0.0 else -score[g, i]
        if value != 0.0:
            k = count
            while k > 0 and ordered[k - 1] > value:
                ordered[k] = ordered[k - 1]
                k -= 1
            ordered[k] = value
            count += 1
    if count < 3:
        return 0.0
    return abs(ordered[(count - 1) // 2] + ordered[count // 2]) / 2


@njit(
    "void(float64[:,:,::1],float64[:,:,::1],int64[::1],int64[::1],int64[:,::1],float64,"
    "float64[:,::1])",
    **_KEPT,
)
def reduce_pass(z, score, members, groups, plan, cap, out):
    """Work out all statistics of all families; see `Reduction` for what `plan` holds."""
    n = z.shape[2]
    rest, ordered = np.empty(n), np.empty(len(groups))
    for p in range(plan.shape[0]):
        start, stop, first, last, tests, place, largest, third, rms, consensus = plan[p]
        top = np.empty((place, n))
        for k in range(tests):
            top[:] = -np.inf
            total = np.zeros(n)
            for j in range(start, stop):
                values = score[k, members[j]]
                _add_top(values, top, rest)
                if rms >= 0:
                    _add_square(values, cap, total)
            for i in range(n):
                if largest >= 0:
                    out[largest + k, i] = top[0, i]
                if third >= 0:
                    out[third + k, i] = top[place - 1, i]
                if rms >= 0:
                    out[rms + k, i] = np.sqrt(total[i] / (stop - start))
                if consensus >= 0:
                    out[consensus + k, i] = _consensus(
                        z[k], score[k], groups[first:last], i, ordered
                    )
