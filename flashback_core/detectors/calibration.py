"""Calibration: from a nominal false-alarm budget to thresholds, and from an alarm to a confidence.

Each statistic has a *level*, which one in `LEVEL_BLOCKS` healthy blocks of `BLOCK` rows exceeds:
the Hill estimate of its tail. What is compared with a budget is the largest ratio of a statistic to
its level, over all statistics; its own tail is measured on kinds of runs whose statistics had no
part in the levels, since an unseen kind of healthy run brings a tail of its own. Both are tails of
events: blocks that adjoin a larger one are part of it (`peaks`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["BLOCK", "Confidence", "Tail", "block_maxima", "level_of", "peaks"]

Floats = npt.NDArray[np.float64]

BLOCK = 100
"""Rows of a block."""
LEVEL_BLOCKS = 1e4
"""Healthy blocks of which one exceeds the level of a statistic."""
LEVEL_SHARE = 0.02
"""Share of the blocks that the tail of a statistic is estimated from."""
LEAST = 10
"""Blocks that it is estimated from at least."""
FLATTEST, STEEPEST = 0.5, 0.08
"""Bounds of a tail index, for samples that are too small to tell."""
TOP = 0.97
"""Confidence in the strongest alarm."""
TAIL_RATE = 60.0
"""Alarms per 100,000 rows from which on the tail of the largest ratio is estimated."""


@dataclass(frozen=True, slots=True)
class Tail:
    """Alarms per 100,000 healthy rows as a power of the largest ratio.

    Attributes:
        ratio: A ratio.
        rate: Alarms per 100,000 rows at it.
        index: Tail index: ratios grow as rates fall to this power.
    """

    ratio: float
    rate: float
    index: float

    def ratio_at(self, budget: float) -> float:
        """The ratio that as many alarms per 100,000 rows exceed."""
        return float(self.ratio * (self.rate / budget) ** self.index)

    @classmethod
    def of(cls, maxima: Floats, rows: int) -> Tail:
        """The tail of block maxima of the largest ratio over `rows` rows."""
        k = int(np.clip(round(TAIL_RATE * rows / 1e5), LEAST, max(len(maxima) - 1, LEAST)))
        ratio, index, k = _hill(maxima, k)
        return cls(round(ratio, 4), round(1e5 * k / max(rows, 1), 3), round(index, 4))

    def to_dict(self) -> dict[str, float]:
        """For ``config.json``."""
        return {"ratio": self.ratio, "rate": self.rate, "index": self.index}


@dataclass(frozen=True, slots=True)
class Confidence:
    """Share of statistical findings that are right within 2 steps: a logistic function × `TOP`.

    However strong an alarm is, some are wrong: a run may become unstable by itself, or break in its
    own way long after the fault. Without that ceiling one of these would flatten the function.

    Attributes:
        bias: Log odds at a ratio of 1 whose date has no belief.
        ratio: Log odds per logarithm of the ratio of the alarm to its level.
        near: Log odds per unit of belief in the two steps around the date.
    """

    bias: float = 0.0
    ratio: float = 1.5
    near: float = 0.0

    def of(self, ratio: float, near: float) -> float:
        """Confidence in an alarm of a ratio, dated with a belief."""
        x = self.bias + self.ratio * math.log(max(ratio, 1e-3)) + self.near * near
        return round(TOP / (1.0 + math.exp(-x)), 4)

    @classmethod
    def fitted(
        cls, ratios: Sequence[float], near: Sequence[float], right: Sequence[bool]
    ) -> Confidence:
        """The function that explains best which findings were right (ridge, Fisher scoring)."""
        logs = np.log(np.maximum(np.asarray(ratios, np.float64), 1e-3)).clip(max=3.0)
        x = np.column_stack([np.ones(len(logs)), logs, np.asarray(near, np.float64)])
        y, w = np.asarray(right, np.float64), np.array([0.0, 1.0, 1.0])
        for _ in range(100):
            p = 1.0 / (1.0 + np.exp(-x @ w))
            wrong = TOP * p * (1 - p) / (1 - TOP * p)  # slope of −log(1 − TOP p)
            gradient = x.T @ (y * (1 - p) - (1 - y) * wrong) - 0.1 * np.array([0.0, w[1], w[2]])
            known = (x * (wrong * (1 - p))[:, None]).T @ x + np.diag([1e-3, 0.1, 0.1])
            w = w + np.linalg.solve(known, gradient)
        return cls(*(round(float(v), 4) for v in w))

    def to_dict(self) -> dict[str, float]:
        """For ``config.json``."""
        return {"bias": self.bias, "ratio": self.ratio, "near": self.near}


def block_maxima(values: Floats) -> Floats:
    """Largest values of about `BLOCK` rows each, (…, rows) to (…, blocks)."""
    rows = values.shape[-1]
    if not rows:
        return np.zeros((*values.shape[:-1], 0))
    n = max(1, rows // BLOCK)
    starts = np.arange(n) * rows // n
    return np.asarray(np.maximum.reduceat(values, starts, axis=-1))


def peaks(maxima: Floats) -> Floats:
    """Block maxima with 0 in the place of those that adjoin a larger one, or an equal one before.

    What goes on over several blocks is one event, and counts once, as it is one alarm. In extreme
    value statistics this is known as declustering.

    Args:
        maxima: Of shape (…, blocks).
    """
    out = maxima.copy()
    before, after = maxima[..., :-1], maxima[..., 1:]
    out[..., 1:][after <= before] = 0.0
    out[..., :-1][before < after] = 0.0
    return out


def level_of(maxima: Floats) -> float:
    """The level of a statistic from its block maxima over healthy rows."""
    known = maxima[maxima > 0]
    if not len(known):
        return 1.0
    k = max(LEAST, int(LEVEL_SHARE * len(maxima)))
    ratio, index, k = _hill(known, k)
    return float(max(ratio * (LEVEL_BLOCKS * k / len(maxima)) ** index, 0.5))


def _hill(values: Floats, k: int) -> tuple[float, float, int]:
    """k-th largest value, tail index above it, and k itself, which few values make smaller."""
    ordered = np.sort(values[values > 0])[::-1]
    if len(ordered) < 3:
        return float(ordered[0]) if len(ordered) else 1.0, 0.25, max(len(ordered), 1)
    k = min(k, len(ordered) - 1)
    index = float(np.log(ordered[:k] / ordered[k]).mean())
    return float(ordered[k]), min(max(index, STEEPEST), FLATTEST), k
