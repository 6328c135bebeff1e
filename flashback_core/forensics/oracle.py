"""Visibility: how far a fault moves the metrics, measured against its same-seed healthy twin.

The twin has the same weights, data and dropout, so all that differs is the fault. The difference is
counted in units of the twin's own innovation noise (the distance of a value from the median of the
48 before it). Point effect: the largest difference at the first bad step or the one after. Window
effect: the mean difference over 50 or 150 steps times the root of their number. d′ is the largest
of the point effect and 0.4 times the window effects: at 8 a fault counts as visible.

Weight norms count by their steps from row to row (two runs drift apart once anything differs), and
histogram bins have at least the noise of counting.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from flashback_core.table import StepTable

__all__ = ["VISIBLE", "Visibility", "visibility"]

Floats = npt.NDArray[np.float64]

VISIBLE = 8.0
"""d′ from which a fault counts as visible."""
LARGEST = 1e6
_BEFORE = 48
_WINDOWS = (50, 150)
_PER_WINDOW = 0.4  # a window effect of 20 counts as much as a point effect of 8
_UNSEEN = ("lr", "step_wall_ms", "batch_id_mean", "batch_uniq_frac")
"""Metrics that are no effect on the training: time, sample ids, and the learning rate, which a rule
of its own reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Visibility:
    """How visible a fault is.

    Attributes:
        d_prime: See the top of this file; at most `LARGEST`.
        point: Point effect.
        window: Largest window effect, before the factor of 0.4.
        metric: The metric with the largest d′, empty where nothing moved.
    """

    d_prime: float
    point: float
    window: float
    metric: str


def visibility(
    run: StepTable, twin: StepTable, step: int, *, stop: int | None = None
) -> Visibility:
    """Visibility of a fault at `step` of `run`.

    Args:
        run: The run with the fault.
        twin: The same without it, the same steps.
        step: First bad step.
        stop: Steps from here on are left out: another fault is at work.
    """
    best = Visibility(d_prime=0.0, point=0.0, window=0.0, metric="")
    rows = slice(run.row_of(step), len(run) if stop is None else run.row_of(stop))
    for name in twin.names:
        if name in _UNSEEN or name not in run:
            continue
        point, window = _effects(name, run.column(name), twin.column(name), rows)
        d_prime = max(point, _PER_WINDOW * window)
        if d_prime > best.d_prime:
            best = Visibility(d_prime=d_prime, point=point, window=window, metric=name)
    return best


def _effects(
    name: str, run: npt.NDArray[np.generic], twin: npt.NDArray[np.generic], rows: slice
) -> tuple[float, float]:
    """Point and window effect of one metric."""
    healthy, broken = _scaled(name, twin), _scaled(name, run)
    if not np.isfinite(healthy).any():
        return 0.0, 0.0
    lost = np.isfinite(healthy[rows]) & ~np.isfinite(broken[rows])
    if lost[:2].any():
        return LARGEST, LARGEST
    noise = _noise(healthy)
    difference = np.nan_to_num(broken[rows] - healthy[rows], nan=0.0, posinf=0.0, neginf=0.0)
    if not difference.any():
        return 0.0, 0.0
    size = np.maximum(noise, _counting_noise(name, healthy[rows], broken[rows]))
    if not size.all():  # the twin's value never changes, and the fault changes it
        return (LARGEST if difference[:2].any() else 0.0), 0.0
    z = difference / size
    point = float(np.abs(z[:2]).max(initial=0.0))
    window = max(_window_effects(z), default=0.0)
    return min(point, LARGEST), min(LARGEST if lost.any() else window, LARGEST)


def _counting_noise(name: str, healthy: Floats, broken: Floats) -> Floats:
    """Noise of log (1 + n) for a count of n in a histogram bin; 0 for other metrics."""
    if not name.startswith("hist_"):
        return np.zeros(len(healthy))
    larger = np.nan_to_num(np.fmax(healthy, broken))
    return np.asarray(np.exp(-0.5 * larger))


def _window_effects(z: Floats) -> Iterator[float]:
    for length in _WINDOWS:
        part = z[:length]
        if len(part) >= 10:
            yield float(abs(part.mean()) * np.sqrt(len(part)))


def _scaled(name: str, column: npt.NDArray[np.generic]) -> Floats:
    """A metric on the scale on which its noise is even: logarithm, or log-odds of shares."""
    x = np.asarray(column, np.float64)
    if name.endswith(":sign_flip"):
        x = np.clip(x, 1e-6, 1 - 1e-6)
        return np.asarray(np.log(x / (1 - x)))
    if name.startswith("hist_") or name.endswith("nonfinite"):
        return np.asarray(np.log1p(np.maximum(x, 0.0)))
    positive = x[np.isfinite(x) & (x > 0)]
    if not len(positive) or np.nanmin(np.where(np.isfinite(x), x, np.nan)) < 0:
        return x
    log = np.where(np.isnan(x), np.nan, np.log(np.maximum(x, 1e-3 * positive.min())))
    if name.endswith("param_norm"):
        with np.errstate(invalid="ignore"):
            return np.diff(log, prepend=log[:1])
    return log


def _noise(healthy: Floats) -> float:
    """Robust size of the innovations of a healthy run; 0 where it never changes."""
    known = healthy[np.isfinite(healthy)]
    if len(known) <= _BEFORE:
        return float(np.std(np.diff(known))) if len(known) > 2 else 0.0
    before = np.lib.stride_tricks.sliding_window_view(known, _BEFORE)[:-1]
    innovations = known[_BEFORE:] - np.median(before, axis=1)
    spread = 1.4826 * float(np.median(np.abs(innovations - np.median(innovations))))
    return spread or float(np.std(innovations))
