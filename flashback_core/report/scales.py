"""From values and steps to places in a drawing, and the ticks beside it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from flashback_core.bounds import bounded
from flashback_core.report.spec import Panel
from flashback_core.report.text import number

__all__ = ["HEIGHT", "WIDTH", "ValueScale", "nice_ticks", "places", "step_ticks", "value_scale"]

WIDTH = 1_000_000
"""Units of a drawing's width: fine enough to zoom into a run of a million steps."""
HEIGHT = 1000
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ValueScale:
    """Where a value stands between the bottom and the top of a panel."""

    low: float
    high: float
    log: bool

    def places(self, values: npt.ArrayLike) -> Floats:
        """Distance from the top in units of `HEIGHT`, NaN for values that are not finite.

        Zeros on a logarithmic scale stand at its bottom.
        """
        x = bounded(values)
        with np.errstate(invalid="ignore", divide="ignore"):
            y = np.log10(np.maximum(x, 1e-300)) if self.log else x
            share = np.clip((y - self.low) / (self.high - self.low), -0.2, 1.2)
        share = np.where((x == 0) & self.log, 0.03, share)
        return np.where(np.isfinite(x), HEIGHT * (1 - share), np.nan)

    def ticks(self) -> tuple[tuple[float, str], ...]:
        """Distance from the top in per cent, and the words, of a few round values."""
        if not self.log:
            few = nice_ticks(self.low, self.high, 3)
            values = few if len(few) > 1 else nice_ticks(self.low, self.high, 5)
            return tuple((100 * self._down(v), _tick(v)) for v in values)
        return tuple((100 * self._down(math.log10(v)), _tick(v)) for v in self._log_values())

    def _log_values(self) -> list[float]:
        """At most four values 1, 2 or 5 times a power of ten; powers alone where there is room."""
        powers = range(max(math.floor(self.low), -307), min(math.ceil(self.high), 307) + 1)
        values = [10.0**p for p in powers if self.low <= p <= self.high]
        if len(values) < 2:
            every = [m * 10.0**p for p in powers for m in (1, 2, 5)]
            values = [v for v in every if self.low <= math.log10(v) <= self.high]
        if len(values) < 2:
            values = [v for v in nice_ticks(10**self.low, 10**self.high, 3) if v > 0]
        return values[:: (len(values) + 3) // 4 or 1]

    def _down(self, x: float) -> float:
        return 1 - (x - self.low) / (self.high - self.low)


def _tick(value: float) -> str:
    """A value in the little room beside a chart: no row of zeros."""
    if abs(value) < 1e6:
        return number(value)
    mantissa, exponent = f"{value:.2e}".split("e")
    return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"


def value_scale(panel: Panel) -> ValueScale:
    """The scale that holds the lines of `panel`, and its band unless that dwarfs them."""
    values = bounded(np.concatenate([line.values for line in panel.lines] or [np.zeros(0)]))
    values = values[np.isfinite(values) & ((values > 0) | (not panel.log))]
    if not len(values):
        return ValueScale(0.0, 1.0, log=False)
    low, high = float(values.min()), float(values.max())
    if panel.band is not None:
        low, high = _with_band(panel, low, high)
    if panel.log:
        low, high = math.log10(low), math.log10(high)
    room = (high - low) * 0.08 or abs(high) * 0.1 or 1.0
    bottom = low - room
    if not panel.log and low >= 0 > bottom:
        bottom = -0.02 * (high + room)
    return ValueScale(bottom, high + room, panel.log)


def _with_band(panel: Panel, low: float, high: float) -> tuple[float, float]:
    assert panel.band is not None
    room = max(high - low, 1e-9 * max(abs(high), abs(low)))
    lows, highs = panel.band.low, panel.band.high
    ok = np.isfinite(lows) & np.isfinite(highs) & ((lows > 0) | (not panel.log))
    if not ok.any():
        return low, high
    return max(min(low, float(lows[ok].min())), low - room if not panel.log else low / 10), min(
        max(high, float(highs[ok].max())), high + room if not panel.log else high * 10
    )


def places(steps: npt.ArrayLike, domain: tuple[float, float]) -> Floats:
    """Distance from the left of each step, in units of `WIDTH`."""
    first, last = domain
    return (np.asarray(steps, np.float64) - first) / (last - first) * WIDTH


def nice_ticks(low: float, high: float, wanted: int) -> list[float]:
    """Round numbers from `low` to `high`, about `wanted` of them.

    Examples:
        >>> nice_ticks(0.0, 100.0, 5)
        [0.0, 20.0, 40.0, 60.0, 80.0, 100.0]
    """
    if not high > low:
        return [low]
    rough = (high - low) / max(wanted, 1)
    power = 10.0 ** math.floor(math.log10(rough))
    size = next((m * power for m in (1, 2, 5) if m * power >= rough), 10 * power)
    first = math.ceil(low / size - 1e-9)
    return [i * size for i in range(first, math.floor(high / size + 1e-9) + 1)]


def step_ticks(domain: tuple[float, float], wanted: int = 6) -> tuple[tuple[float, str], ...]:
    """Distance from the left in per cent, and the words, of a few round steps."""
    first, last = domain
    values = [v for v in nice_ticks(first, last, wanted) if v == int(v)]
    return tuple((100 * (v - first) / (last - first), f"{int(v):,}") for v in values)
