"""Windows whose values are kept in order, compiled by numba, and their medians.

A window in order lies in an array that begins with −∞; behind its values stand unknown ones and
padding, as ∞. Only `median_pass` is called from Python; the others become part of other code.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

__all__ = ["median", "median_pass", "padded", "slide", "sort"]

_OPTIONS: dict[str, Any] = {"boundscheck": False, "error_model": "numpy", "nogil": True}
_VECTOR = 32
"""Values that the compiler works on at a time: loops over windows are padded to whole ones."""
_INF, _NAN = np.inf, np.nan


def padded(window: int) -> int:
    """How many values `slide` goes through, for a window of this size."""
    return -(-window // _VECTOR) * _VECTOR


@njit(**_OPTIONS)
def slide(ordered, n_padded, old, new):
    """Take `old` out of a window in order and put `new` in; return how many more are known."""
    leaving = old if old == old else _INF
    coming = new if new == new else _INF
    before = ordered[0]
    for k in range(1, n_padded + 1):
        here, after = ordered[k], ordered[k + 1]
        # the values at k and k + 1 once `coming` is in; from that of `leaving` on, all move up
        low = here if here < coming else coming
        low = low if low > before else before
        high = after if after < coming else coming
        high = high if high > here else here
        ordered[k] = low if low < leaving else high
        before = here
    return (1 if new == new else 0) - (1 if old == old else 0)


@njit(**_OPTIONS)
def median(ordered, count, least):
    """Median of the `count` known values of a window in order; NaN if fewer than `least`."""
    if count < least:
        return _NAN
    return (ordered[1 + (count - 1) // 2] + ordered[1 + count // 2]) / 2


@njit(**_OPTIONS)
def sort(values, ordered):
    """Put a window in order; return how many of its values are known."""
    count = 0
    ordered[:] = _INF
    ordered[0] = -_INF
    for value in values:
        if value == value:
            k = count
            while ordered[k] > value:
                ordered[k + 1] = ordered[k]
                k -= 1
            ordered[k + 1] = value
            count += 1
    return count


@njit(**_OPTIONS)
def _middle_two(a, b):
    """The two values in the middle of two windows in order, each of the same power of two."""
    n, taken = len(a), 0
    if a[n - 1] < b[0]:
        return a[n - 1], b[0]
    step = n // 2  # how many of the lower half come from `a`
    while step:
        more = taken + step
        taken = more if a[more - 1] < b[n - more] else taken
        step //= 2
    low, high = b[n - 1 - taken], a[taken]
    if taken:
        low = a[taken - 1] if a[taken - 1] > low else low
        high = b[n - taken] if b[n - taken] < high else high
    return low, high


@njit(
    "void(float64[:,:,::1],float64[:,:,::1],float64[:,::1],float64[:,::1])", cache=True, **_OPTIONS
)
def median_pass(a, b, one, out):
    """Medians of all values of `a`, `b` and `one`, of which none is NaN; `a` and `b` in order."""
    for k in range(a.shape[0]):
        for f in range(a.shape[1]):
            low, high = _middle_two(a[k, f], b[k, f])
            value = one[k, f] if one[k, f] > low else low
            out[k, f] = value if value < high else high
