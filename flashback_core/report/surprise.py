"""How far a metric lies from the steps before it, for drawing only.

A value is compared with a trailing reference window by its median and its median absolute deviation
(MAD), positive metrics on a logarithmic scale. Detection has its own, calibrated statistics; these
numbers colour the heat map and place the bands of the small charts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from flashback_core.bounds import bounded

__all__ = [
    "CAP",
    "REFERENCE_ROWS",
    "Scale",
    "block_surprise",
    "lost_rows",
    "row_surprise",
    "trailing",
]

Floats = npt.NDArray[np.float64]

REFERENCE_ROWS = 64
"""Rows in the reference window."""
REFERENCE_BLOCKS = 24
"""Blocks in the reference window when a whole run is drawn in blocks."""
MIN_REFERENCE = 8
"""Finite values that a window needs before anything is compared with it."""
CAP = 99.0
"""Deviations are cut here; a value that is not finite counts as this many."""
_LOGGED_ALWAYS = 0.7
"""Share of rows with a value from which a metric counts as logged at every step."""
_MAD_TO_SIGMA = 1.4826
_LOG_FLOOR = 0.01
"""Smallest spread of a metric on a logarithmic scale: about 1 %."""


@dataclass(frozen=True, slots=True)
class Scale:
    """The scale on which a metric is compared: logarithmic for positive ones, else as it is.

    Attributes:
        log: Whether values are compared by their logarithm.
        tiny: What stands for zero on a logarithmic scale.
        counts: Whether values are counts of events, whose spread is at least that of chance.
    """

    log: bool
    tiny: float
    counts: bool = False

    @classmethod
    def of(cls, values: npt.ArrayLike, *, counts: bool = False) -> Scale:
        """The scale that fits `values`: logarithmic unless one is negative or none is positive."""
        x = np.asarray(values)
        finite = x[np.isfinite(x)]
        positive = finite[finite > 0]
        if len(positive) == 0 or bool(np.any(finite < 0)):
            return cls(log=False, tiny=1.0)
        whole = not np.issubdtype(x.dtype, np.floating)
        return cls(
            log=True, tiny=0.5 if whole else max(float(positive.min()) / 10, 1e-300), counts=counts
        )

    def forward(self, values: npt.ArrayLike) -> Floats:
        """Values on this scale; zeros of a logarithmic one lie just below its smallest value."""
        x = bounded(values)
        if not self.log:
            return np.where(np.isfinite(x), x, np.nan)
        clipped = np.maximum(x, self.tiny, where=np.isfinite(x), out=np.full_like(x, np.nan))
        return np.log(clipped)

    def back(self, values: npt.ArrayLike) -> Floats:
        """The inverse of `forward`."""
        x = np.asarray(values, np.float64)
        return np.exp(np.minimum(x, 690.0)) if self.log else x

    def spread(self, centre: Floats, windows: Floats) -> Floats:
        """Robust standard deviation of each window (last axis), never zero."""
        mad = np.nanmedian(np.abs(windows - centre[..., None]), axis=-1) * _MAD_TO_SIGMA
        floor = np.maximum(_LOG_FLOOR * (1.0 if self.log else np.abs(centre)), 1e-12)
        if self.counts and self.log:
            floor = np.maximum(floor, 1 / np.sqrt(np.exp(centre) + 1))
        return np.asarray(np.maximum(mad, floor), np.float64)


def trailing(values: npt.ArrayLike, frozen_from: int | None = None) -> tuple[Floats, Floats]:
    """Centre and spread of the reference window before each row, on the metric's `Scale`.

    Args:
        values: One metric, shape (rows,).
        frozen_from: From this row on the window stays where it was, so that a fault does not
            become its own reference.

    Returns:
        Two arrays of shape (rows,); NaN where fewer than `MIN_REFERENCE` values came before.
    """
    x = Scale.of(values).forward(values)
    windows = _windows(x, frozen_from)
    return _centre_spread(windows, Scale.of(values))


def row_surprise(
    values: npt.ArrayLike,
    frozen_from: int | None = None,
    *,
    counts: bool = False,
    reference: int = REFERENCE_ROWS,
) -> Floats:
    """Signed robust deviations of each row from the window before it, shape (rows,).

    Args:
        values: One metric, shape (rows,).
        frozen_from: See `trailing`.
        counts: Whether the values are bins of a histogram, see `Scale`.
        reference: Rows in the window.

    Returns:
        NaN where there is no reference; `CAP` where a value is lost, see `lost_rows`.
    """
    scale = Scale.of(values, counts=counts)
    x = scale.forward(values)
    centre, spread = _centre_spread(_windows(x, frozen_from, reference), scale)
    z = np.clip((x - centre) / spread, -CAP, CAP)
    return np.where(lost_rows(values), CAP, z)


def _windows(x: Floats, frozen_from: int | None, reference: int = REFERENCE_ROWS) -> Floats:
    """The `reference` values before each row, shape (rows, reference)."""
    padded = np.concatenate([np.full(reference, np.nan), x])
    starts = np.arange(len(x))
    if frozen_from is not None:
        starts = np.minimum(starts, max(frozen_from, 0))
    return np.lib.stride_tricks.sliding_window_view(padded, reference)[starts]


def _centre_spread(windows: Floats, scale: Scale) -> tuple[Floats, Floats]:
    enough = np.isfinite(windows).sum(axis=-1) >= MIN_REFERENCE
    centre = np.full(windows.shape[:-1], np.nan)
    spread = centre.copy()
    if enough.any():
        centre[enough] = np.nanmedian(windows[enough], axis=-1)
        spread[enough] = scale.spread(centre[enough], windows[enough])
    return centre, spread


def lost_rows(values: npt.ArrayLike) -> npt.NDArray[np.bool_]:
    """Rows at which a metric is NaN or infinite although it is one that has a value at every step.

    A metric that is missing in many rows between its first and its last value was logged now and
    then; there NaN means nothing.

    Examples:
        >>> lost_rows([1.0, 2.0, float("nan")])
        array([False, False,  True])
        >>> lost_rows([1.0, float("nan"), float("nan"), 2.0, float("nan")])
        array([False, False, False, False, False])
    """
    x = np.asarray(values)
    finite = np.isfinite(x)
    if finite.all() or not finite.any():
        return np.zeros(len(x), np.bool_)
    first, last = int(finite.argmax()), len(x) - int(finite[::-1].argmax())
    if finite[first:last].mean() < _LOGGED_ALWAYS:
        return np.asarray(np.isinf(x), np.bool_)
    lost = np.asarray(~finite, np.bool_)
    lost[:first] = False
    return lost


def block_surprise(
    values: npt.NDArray[np.generic], starts: npt.NDArray[np.intp], *, counts: bool = False
) -> Floats:
    """The largest signed deviation of each block of rows, shape (blocks,).

    A block's highest and lowest value are compared with those of the blocks before it, so that
    long blocks are no more surprising than short ones.

    Args:
        values: One metric, shape (rows,).
        starts: First row of each block, increasing from 0.
        counts: Whether the values are bins of a histogram, see `Scale`.
    """
    raw = np.asarray(values)
    if len(starts) == len(raw):
        return row_surprise(raw, counts=counts, reference=REFERENCE_BLOCKS)
    finite = np.isfinite(raw)
    low = np.minimum.reduceat(np.where(finite, raw, np.inf), starts).astype(np.float64)
    high = np.maximum.reduceat(np.where(finite, raw, -np.inf), starts).astype(np.float64)
    empty = np.isinf(low)
    low[empty], high[empty] = np.nan, np.nan
    below, above = (row_surprise(x, counts=counts, reference=REFERENCE_BLOCKS) for x in (low, high))
    z = np.where(-below > above, below, above)
    odd = np.logical_or.reduceat(lost_rows(raw), starts)
    return np.where(odd, CAP, z)
