"""Dating: from the row of an alarm back to the row of the onset.

An alarm may come late; its date need not. The metrics that raised it are searched for the row at
which their level moved: for each candidate, how much better a shift from there on explains the rows
than none. The shift may last to the end or for a few rows only, and metrics of the gradient may
follow those of the update by one row, as they do when the update went wrong
(`schema.Metric.phase`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from flashback_core.baseline import MAD_TO_SIGMA
from flashback_core.detectors.features import Features

__all__ = ["AHEAD", "Onset", "date"]

Floats = npt.NDArray[np.float64]

AHEAD = 8
"""Rows after the alarm that may speak."""
REFERENCE = 64
"""Rows before the candidates that define the level and the noise."""
LATEST = 24
"""The last of these rows, which define the level where a metric drifts."""
LINEAR = 4.0
"""Deviations up to which a metric counts in full."""
PULSES = (1, 2, 4)
"""Lengths of a shift that passes."""
MOMENTUM = 0.6
"""How slowly an update follows a gradient that changed; below an optimizer's beta, since the new
gradients are larger, or agree more."""
LATE_GRADIENT_COST = 8.0
"""What explaining the gradient's metrics one row later has to gain before it is believed."""
CREDIBLE = 0.95
NEAR = 2
"""Rows around a date within which it counts as right."""


@dataclass(frozen=True)
class Onset:
    """Where a change began.

    Attributes:
        row: The likeliest row.
        first, last: Its credible interval.
        belief: Share of belief in `row`.
        near: Share of belief in the rows within `NEAR` of it.
    """

    row: int
    first: int
    last: int
    belief: float
    near: float = 0.0


def date(found: Features, members: npt.NDArray[np.int64], alarm: int, window: int) -> Onset:
    """The onset behind an alarm.

    Args:
        found: The features of the run, or of a stretch of it around the alarm.
        members: The features that raised the alarm.
        alarm: Row of the alarm, in the run.
        window: Rows that the test behind the alarm looks at.
    """
    alarm -= found.start
    earliest = max(alarm - 3 * window - 2, 1)
    begin = max(earliest - REFERENCE, 0)
    stop = min(alarm + AHEAD + 1, found.values.shape[1])
    moved = _standardised(found, members, begin, earliest, stop)
    gain = _joint(moved, found.is_after[members])
    gain = gain[: alarm - earliest + 1]
    belief = _belief(gain, len(members))
    first, last = _credible(belief)
    best = int(np.argmax(gain))
    row = found.start + earliest
    near = float(belief[max(best - NEAR, 0) : best + NEAR + 1].sum())
    return Onset(row + best, row + first, row + last, float(belief[best]), near)


def _standardised(
    found: Features, members: npt.NDArray[np.int64], begin: int, earliest: int, stop: int
) -> Floats:
    """Rows earliest … stop - 1 in deviations from the rows before, compressed."""
    x = found.values[members, begin:stop]
    reference = x[:, : max(earliest - begin, 1)]
    center = np.median(reference, axis=1, keepdims=True)
    spread = MAD_TO_SIGMA * np.median(np.abs(reference - center), axis=1, keepdims=True)
    level = np.median(reference[:, -LATEST:], axis=1, keepdims=True)
    z = (x[:, earliest - begin :] - level) / (spread + found.floor[members])
    return _compressed(z)


def _compressed(z: Floats) -> Floats:
    """Deviations as they are up to `LINEAR`, beyond it by their logarithm: none decides alone."""
    size = np.maximum(np.abs(z), LINEAR)
    return np.where(np.abs(z) <= LINEAR, z, np.sign(z) * LINEAR * (1 + np.log(size / LINEAR)))


def _joint(moved: Floats, late: npt.NDArray[np.bool_]) -> Floats:
    """Gain in log-likelihood (times two) of a fault that begins at each row, over all metrics.

    Either all metrics change at that row; or the update went wrong there, and the gradient's
    metrics follow one row later.
    """
    shifts = _shifts(moved)
    builds = np.where(
        late[:, None], np.maximum(shifts, _fit(moved, _building(moved.shape[1]))), shifts
    )
    together = builds.sum(axis=0)
    if late.all() or not late.any():
        return np.asarray(together)
    followed = shifts[late].sum(axis=0)
    followed[:-1] += shifts[~late].sum(axis=0)[1:]
    return np.asarray(np.maximum(together, followed - LATE_GRADIENT_COST))


def _shifts(moved: Floats) -> Floats:
    """Gain of each metric from a shift at each row that stays, or passes after a few rows."""
    since = _since(moved.shape[1])
    shapes = [since >= 0, *((since >= 0) & (since < length) for length in PULSES)]
    return np.asarray(np.max([_fit(moved, shape.astype(np.float64)) for shape in shapes], axis=0))


def _building(rows: int) -> Floats:
    """A change that builds up from each row on, as an optimizer's running mean does."""
    since = _since(rows)
    return np.where(since >= 0, 1.0 - MOMENTUM ** (since.clip(0) + 1.0), 0.0)


def _since(rows: int) -> npt.NDArray[np.int64]:
    return np.arange(rows) - np.arange(rows)[:, None]


def _fit(moved: Floats, shapes: Floats) -> Floats:
    """Squared length of each metric along each shape, of shape (metrics, rows)."""
    return np.asarray((moved @ shapes.T) ** 2 / (shapes**2).sum(axis=1))


def _belief(gain: Floats, members: int) -> Floats:
    """Posterior over the rows; metrics of one run say partly the same, so they count for less."""
    weight = 0.5 / max(1.0, members / 2)
    belief = np.exp(weight * (gain - gain.max()))
    return np.asarray(belief / belief.sum())


def _credible(belief: Floats) -> tuple[int, int]:
    """Smallest set of rows that holds `CREDIBLE` of the belief, as a range."""
    order = np.argsort(-belief, kind="stable")
    enough = int(np.searchsorted(np.cumsum(belief[order]), CREDIBLE)) + 1
    rows = order[:enough]
    return int(rows.min()), int(rows.max())
