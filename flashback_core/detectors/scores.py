"""Scores: how far each step lies from what its own run did just before.

Two kinds of test per feature, both causal and both measured in units of the run's own noise:

* *point*: the feature minus its median over the last `LEVEL` rows, over a trailing robust scale.
* *window* of w rows: the median (w < 48) or mean of the last w rows minus the level before them,
  minus what that difference usually is (a steady trend cancels), over its own trailing scale.

Each is then divided by the largest value that the same feature had in the rows before (at least
`QUIET`), so that a heavy-tailed feature has to beat its own tail. A family of features becomes four
numbers: the largest, the third largest, the root mean square, and the *consensus*, the absolute
median over groups of the signed deviation. One odd batch moves some groups; a fault in the learning
rate or in the optimizer's state moves every group at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from flashback_core.baseline import (
    MAD_TO_SIGMA,
    delay,
    trailing_max,
    trailing_mean,
    trailing_median,
)
from flashback_core.detectors.features import FAMILIES, Features

__all__ = ["LOOKBACK", "SCALES", "WARM_UP", "Deviations", "deviations", "scores"]

Floats = npt.NDArray[np.float64]

SCALES = {"point": 1, "window5": 5, "window16": 16, "window48": 48}
"""Rows that each test looks at."""

LEVEL = 49
"""Rows behind the level that a row is compared with."""
FIRST_LEVEL = 24
"""Rows behind the level at the very start of a run."""
SPREAD = 65
"""Rows behind the scale of a point test."""
HISTORY = 129
"""Rows behind the center, the scale and the largest value of a window test."""
TAIL_ROWS = 160
"""Rows behind the largest value so far."""
FIRST_TAIL = 16
"""Rows behind it at the very start of a run."""
QUIET = {"point": 3.0, "window5": 2.5, "window16": 2.0, "window48": 2.0}
"""A largest value below this counts as this: a calm stretch makes no one sensitive."""
EVERY = 4
"""Scales are renewed at each fourth row."""
POINT_ONLY = ("update",)
"""Families of which only edges count: without the learning rate, a schedule looks like a drift."""
CONSENSUS = ("gradient", "update", "update_lr", "sign")
"""Families whose groups vote together."""
ALL = "all"
"""All families together, where there are at least `MANY` features."""
MANY = 20
LIMIT = 1e6

WARM_UP = FIRST_LEVEL + 24 + FIRST_TAIL
"""Rows before the first point test; the window tests begin later."""
LOOKBACK = 720
"""Rows before a row that its scores can depend on: the windows behind each other."""
CHUNK = 8192


@dataclass(frozen=True)
class Deviations:
    """One test of every feature over a stretch of rows, arrays of shape (features, rows).

    Attributes:
        z: Signed robust deviations; 0 where the test has not begun.
        score: Their size over the feature's own largest value so far; 0 likewise.
    """

    z: Floats
    score: Floats


def deviations(found: Features, start: int, stop: int) -> dict[str, Deviations]:
    """Every test of every feature at rows start … stop - 1.

    Args:
        found: The features of the run.
        start: First row.
        stop: Row after the last.

    Returns:
        By the name of the test, arrays of stop - start rows. They are the same whichever stretch
        they are asked for in, as long as it starts at a multiple of `EVERY`.
    """
    begin = max(0, (start - LOOKBACK) // EVERY * EVERY)
    x = found.values[:, begin:stop]
    age = (np.arange(begin, stop) - found.first[:, None]).astype(np.float64)
    level = delay(trailing_median(x, LEVEL, min_rows=FIRST_LEVEL), 1)
    tests = {name: _test(x, level, name, rows, found) for name, rows in SCALES.items()}
    return {name: _cut(test, name, age, start - begin) for name, test in tests.items()}


def _test(x: Floats, level: Floats, name: str, rows: int, found: Features) -> Deviations:
    if rows == 1:
        moved = x - level
        scale = MAD_TO_SIGMA * delay(
            trailing_median(np.abs(moved), SPREAD, min_rows=24, every=EVERY), 1
        )
    else:
        recent = trailing_median(x, rows) if rows < 48 else trailing_mean(x, rows)
        raw = recent - delay(level, rows - 1)
        center = delay(trailing_median(raw, HISTORY, min_rows=48, every=EVERY), rows)
        moved = raw - center
        spread = trailing_median(np.abs(moved), HISTORY, min_rows=24, every=EVERY)
        scale = MAD_TO_SIGMA * delay(spread, rows)
    z = moved / (scale + found.floor)
    largest = delay(trailing_max(np.abs(z), TAIL_ROWS, min_rows=FIRST_TAIL), rows)
    tail = np.maximum(largest, QUIET[name]) * _young(largest)
    return Deviations(z=z, score=np.abs(z) / tail)


def _young(largest: Floats) -> Floats:
    """At least 1: the largest of few rows says less about the tail than that of `TAIL_ROWS`."""
    rows = FIRST_TAIL - 1 + np.cumsum(~np.isnan(largest), axis=-1)
    return np.asarray(np.maximum(TAIL_ROWS / np.maximum(rows, 1), 1.0) ** 0.25)


def _cut(test: Deviations, name: str, age: Floats, drop: int) -> Deviations:
    """The rows asked for, with 0 where a feature has too little behind it."""
    live = (age >= WARM_UP + 3 * SCALES[name]) & np.isfinite(test.score)
    return Deviations(
        z=np.where(live, np.clip(test.z, -LIMIT, LIMIT), 0.0)[:, drop:],
        score=np.where(live, np.minimum(test.score, LIMIT), 0.0)[:, drop:],
    )


def scores(found: Features) -> dict[str, Floats]:
    """Every statistic of the run, ``family/test/reduction``, each of shape (rows,).

    A statistic that this run cannot give (a family without features) is left out.
    """
    n = found.values.shape[1]
    parts: dict[str, list[Floats]] = {}
    for start in range(0, n, CHUNK):
        tests = deviations(found, start, min(start + CHUNK, n))
        for name, values in _reduced(found, tests):
            parts.setdefault(name, []).append(values)
    return {name: np.concatenate(chunks) for name, chunks in parts.items()}


def _reduced(found: Features, tests: dict[str, Deviations]) -> Iterator[tuple[str, Floats]]:
    for family in (*FAMILIES, ALL):
        members = np.flatnonzero((found.family == family) | (family == ALL))
        if not len(members) or (family == ALL and len(members) < MANY):
            continue
        groups = np.array([j for j in members if found.items[j].group], dtype=np.int64)
        for test, both in tests.items():
            if family in POINT_ONLY and test != "point":
                continue
            name = f"{family}/{test}"
            ordered = np.sort(both.score[members], axis=0)
            if family != ALL:
                yield f"{name}/largest", ordered[-1]
            if len(members) >= 4:
                yield f"{name}/third", ordered[-max(3, len(members) // 10)]
                yield f"{name}/rms", np.sqrt(np.mean(np.minimum(ordered, 50.0) ** 2, axis=0))
            if family in CONSENSUS and len(groups) >= 3:
                yield f"{name}/consensus", consensus(both.z[groups])


def consensus(z: Floats) -> Floats:
    """Absolute median over live groups of the signed deviations, (groups, rows) to (rows,).

    A group whose deviation is exactly 0 has no say: it has not begun, or it is frozen. Rows with
    fewer than three groups left give 0.
    """
    live = z != 0
    count = live.sum(axis=0)
    ordered = np.sort(np.where(live, z, np.inf), axis=0)
    last = len(z) - 1
    low = np.take_along_axis(ordered, np.clip((count - 1) // 2, 0, last)[None], axis=0)[0]
    high = np.take_along_axis(ordered, np.clip(count // 2, 0, last)[None], axis=0)[0]
    enough = count >= 3
    middle = np.where(enough, low, 0.0) + np.where(enough, high, 0.0)
    return np.asarray(np.abs(middle) / 2)
