"""A series in a line of text."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from flashback_core.bounds import bounded
from flashback_core.report.surprise import lost_rows

__all__ = ["sparkline"]

_BARS = "▁▂▃▄▅▆▇█"


def sparkline(values: npt.ArrayLike, width: int = 32) -> str:
    """`values` as bars of eight heights, one for each of at most `width` stretches.

    A stretch shows its median, or its furthest value where that is far off, so a spike of one step
    is seen at any length. ``×`` marks a stretch with NaN or infinity; rows in which the metric was
    not logged (see `surprise.lost_rows`) are left out.

    Examples:
        >>> sparkline([0, 1, 2, 3, 4, 5, 6, 7])
        '▁▂▃▄▅▆▇█'
        >>> sparkline([1.0, 2.0, float("nan")])
        '▁█×'
    """
    x = bounded(values)
    if len(x) and not np.isfinite(x).any():
        return "×" * min(width, len(x))
    x = x[np.isfinite(x) | lost_rows(x)]
    if len(x) == 0 or width < 1:
        return ""
    finite = np.isfinite(x)
    low, high = x[finite].min(), x[finite].max()
    parts = np.array_split(x, min(width, len(x)))
    return "".join(_bar(part, low, high) for part in parts)


def _bar(part: np.ndarray, low: float, high: float) -> str:
    """The bar of one stretch: its median, or the far end of a spike that would be lost in it."""
    if not np.isfinite(part).all():
        return "×"
    if high == low:
        return _BARS[0]
    middle = np.median(part)
    far = part[np.argmax(np.abs(part - middle))]
    shown = far if abs(far - middle) > 0.5 * (high - low) else middle
    return _BARS[round((shown - low) / (high - low) * (len(_BARS) - 1))]
