"""Bounds: values of any size as numbers that can be computed with.

A table may come from anywhere and hold 1e308 in a loss or NaN in a column of whole numbers. What
lies between `LARGEST` and infinity says no more than `LARGEST`; bounded, its differences, ratios
and sums stay finite.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["LARGEST", "bounded", "whole"]

LARGEST = 1e100
"""Finite values beyond it, on either side, are set to it."""
_WHOLE = 2.0**62


def bounded(values: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Values as float64 with finite ones of at most `LARGEST`; NaN and infinity stay.

    Examples:
        >>> bounded([1.0, -1e308, float("inf")])
        array([ 1.e+000, -1.e+100,        inf])
    """
    x = np.asarray(values, np.float64)
    if not np.any(np.abs(x) > LARGEST):
        return x
    return np.where(np.isinf(x), x, np.clip(x, -LARGEST, LARGEST))


def whole(values: npt.ArrayLike, absent: int = -1) -> npt.NDArray[np.int64]:
    """Values as whole numbers; `absent` where one is NaN, infinite or out of range.

    Unsigned 64-bit values keep their bits.

    Examples:
        >>> whole([3.0, float("nan"), 1e30])
        array([ 3, -1, -1])
    """
    x: npt.NDArray[Any] = np.asarray(values)
    if x.dtype.kind != "f":
        return x.astype(np.int64)
    known = np.abs(x) < _WHOLE
    return np.where(known, x, absent).astype(np.int64)
