"""The scores, and the statistics made of them, in one pass over a block of rows; by numba.

What is computed, and in which order, is what `score_flat` and `reduction` say in numpy. No flag
lets the compiler reorder sums or fuse a product with a sum, so both give the same bits. Medians of
sliding windows are read off windows that are kept in order: a new value takes the place of the
oldest.
"""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
from numba import njit

from flashback_core.baseline import MAD_TO_SIGMA
from flashback_core.detectors.score_flat import (
    FIRST_LEVEL,
    FIRST_SPREAD,
    FIRST_TAIL,
    HISTORY,
    HISTORY_EVERY,
    LEVEL,
    LEVEL_EVERY,
    LIMIT,
    LONGEST,
    MAX_EVERY,
    QUIET,
    SCALES,
    SPREAD,
    SPREAD_EVERY,
    WARM_UP,
)
from flashback_core.detectors.window_kernels import median, padded, slide, sort

__all__ = ["MOST_ROWS", "WIDTH", "score_pass", "sort_windows"]

_OPTIONS: dict[str, Any] = {"boundscheck": False, "error_model": "numpy", "nogil": True}
_KEPT = {**_OPTIONS, "cache": True}
"""For what is called from Python; the parts become part of it, and are not kept by themselves."""

MOST_ROWS = HISTORY_EVERY
"""Most rows of one pass."""
_INF, _NAN = np.inf, np.nan
_NONE = -1.0
"""Stands for no size at all while the largest is looked for."""
_TESTS = len(SCALES)
_ROWS, _QUIET = tuple(SCALES.values()), tuple(QUIET.values())
_RECENT = 16
_RECENT_KEPT = 32
_WINDOWS = (LEVEL, _RECENT, SPREAD)
_PADDED = tuple(padded(window) for window in _WINDOWS)
WIDTH = max(_PADDED) + 2
"""Room for a window in order: −∞, its values, unknown ones and padding as ∞."""
_CONSTANTS = (
    FIRST_LEVEL, FIRST_SPREAD, FIRST_TAIL, HISTORY, HISTORY_EVERY, LEVEL, LEVEL_EVERY, LIMIT,
    LONGEST, MAD_TO_SIGMA, MAX_EVERY, QUIET, SCALES, SPREAD, SPREAD_EVERY, WARM_UP,
)  # fmt: skip
"""Those of other modules that become part of the code."""
_AT_LEVEL, _AT_RECENT, _AT_SPREAD = 0, 1, 2


@njit(**_OPTIONS)
def _least(a, b):
    return a if a < b else b


@njit(**_OPTIONS)
def _most(a, b):
    return a if a > b else b


@njit(**_OPTIONS)
def _median_of_5(a, b, c, d, e):
    """Median of five; NaN if one is."""
    total = a + b + c + d + e
    if total != total:
        return _NAN
    low = _most(_least(a, b), _least(c, d))
    high = _least(_most(a, b), _most(c, d))
    return _most(_least(low, high), _least(_most(low, high), e))


@njit(**_OPTIONS)
def _sort_windows(x, point, ordered, counts):
    """Put all sliding windows in order, from the last values of the features and point tests."""
    for f in range(x.shape[0]):
        counts[f, _AT_LEVEL] = sort(x[f], ordered[f, _AT_LEVEL])
        counts[f, _AT_RECENT] = sort(x[f, LEVEL - _RECENT :], ordered[f, _AT_RECENT])
        counts[f, _AT_SPREAD] = sort(point[f], ordered[f, _AT_SPREAD])


@njit(**_OPTIONS)
def _join(tail, joined):
    for j in range(len(tail)):
        joined[j] = tail[j]


@njit(**_OPTIONS)
def _keep(joined, n, tail):
    new = joined[n:]
    for j in range(len(tail)):
        tail[j] = new[j]


@njit(**_OPTIONS)
def _push(ring, at, n, values):
    """Put `n` values in the place of the oldest, from `at` on."""
    whole = min(n, len(ring) - at)
    end, rest = ring[at:], values[whole:]
    for i in range(whole):
        end[i] = values[i]
    for i in range(n - whole):
        ring[i] = rest[i]


@njit(**_OPTIONS)
def _medians(row, n, xs, levels, recents, points, scales, ordered, counts):
    """Levels, medians of the last 16 rows, point tests and their scales; see `score_pass`.

    One loop, so that the processor works on the three windows at once.
    """
    level, recent, spread = ordered[_AT_LEVEL], ordered[_AT_RECENT], ordered[_AT_SPREAD]
    n_level, n_recent, n_spread = counts[_AT_LEVEL], counts[_AT_RECENT], counts[_AT_SPREAD]
    held_level, held_scale = levels[LONGEST - 1], scales[0]
    for i in range(n):
        value = xs[LEVEL + i]
        size = abs(value - held_level)
        points[SPREAD + i] = size
        n_level += slide(level, _PADDED[0], xs[i], value)
        n_recent += slide(recent, _PADDED[1], xs[LEVEL - _RECENT + i], value)
        n_spread += slide(spread, _PADDED[2], points[i], size)
        if (row + i) % LEVEL_EVERY == 0:
            held_level = median(level, n_level, FIRST_LEVEL)
        if (row + i) % SPREAD_EVERY == SPREAD_EVERY - 1:
            held_scale = median(spread, n_spread, FIRST_SPREAD)
        levels[LONGEST + i] = held_level
        recents[_RECENT_KEPT + i] = median(recent, n_recent, _RECENT)
        scales[i + 1] = held_scale
    counts[_AT_LEVEL], counts[_AT_RECENT], counts[_AT_SPREAD] = n_level, n_recent, n_spread


@njit(**_OPTIONS)
def _point(n, xs, levels, scales, floor, z):
    """Deviations of the point test."""
    for i in range(n):
        z[i] = (xs[LEVEL + i] - levels[LONGEST - 1 + i]) / (MAD_TO_SIGMA * scales[i] + floor)


@njit(**_OPTIONS)
def _recents(n, xs, recents, out):
    """Medians of the last 5, 16 and 48 rows; that of 48 is the mean of three of 16."""
    for i in range(n):
        at = LEVEL + i
        out[1, i] = _median_of_5(xs[at - 4], xs[at - 3], xs[at - 2], xs[at - 1], xs[at])
    for i in range(n):
        at = _RECENT_KEPT + i
        out[2, i] = recents[at]
        out[3, i] = (recents[at] + recents[at - 16] + recents[at - 32]) / 3


@njit(**_OPTIONS)
def _window(n, rows, at, recent, levels, centers, scales, floor, raw, moved, z):
    """Deviations of the test of `rows` rows, from the medians `recent`; `at` is in the rings."""
    level, center, scale = (
        levels[LONGEST - rows :],
        centers[LONGEST - rows :],
        scales[LONGEST - rows :],
    )
    for i in range(n):
        recent[i] = recent[i] - level[i]
    _push(raw, at, n, recent)
    for i in range(n):
        recent[i] = recent[i] - center[i]
        z[i] = recent[i] / (MAD_TO_SIGMA * scale[i] + floor)
        recent[i] = abs(recent[i])
    _push(moved, at, n, recent)


@njit(**_OPTIONS)
def _held(n, tail, joined):
    """A series that keeps its last value until it is renewed."""
    _join(tail, joined)
    for i in range(n):
        joined[LONGEST + i] = tail[LONGEST - 1]


@njit(**_OPTIONS)
def _largest(row, n, z, maxima, running, larges):
    """Largest size up to each row; returns that of the stretch that goes on."""
    now = running if running == running else _NONE
    past = _past(maxima)
    for i in range(n):
        if (row + i) % MAX_EVERY == 0 and row + i:
            for j in range(len(maxima) - 1):
                maxima[j] = maxima[j + 1]
            maxima[-1] = now if now > _NONE else _NAN
            now, past = _NONE, _past(maxima)
        size = abs(z[i])
        now = size if size > now else now  # never for NaN
        largest = past if past > now else now
        larges[LONGEST + i] = largest if largest > _NONE else _NAN
    return now if now > _NONE else _NAN


@njit(**_OPTIONS)
def _past(maxima):
    """Largest of the maxima that are known."""
    largest = _NONE
    for value in maxima:
        largest = value if value > largest else largest
    return largest


@njit(**_OPTIONS)
def _count(n, rows, z, larges, seen, age, young, few, factor):
    """What the number of rows says of the tails; the features of a run begin together."""
    for i in range(n):
        seen += 1 if z[i] == z[i] else 0
        few[i] = seen < FIRST_TAIL
        if few[i]:
            larges[LONGEST + i] = _NAN
        before = larges[LONGEST - rows + i]
        age += 1 if before == before else 0
        factor[i] = young[min(age, len(young) - 1)]
    return seen, age


@njit(**_OPTIONS)
def _score(n, rows, quiet, age, z, larges, few, factor, z_out, score_out):
    """Size over the largest before, where there is enough behind it; `age` is of the first row."""
    for i in range(n):
        if few[i]:
            larges[LONGEST + i] = _NAN
    before = larges[LONGEST - rows :]
    for i in range(n):
        tail = (quiet if before[i] < quiet else before[i]) * factor[i]
        score = abs(z[i]) / tail
        is_live = (age + i >= WARM_UP + 3 * rows) & (score < _INF)
        far = _least(_most(z[i], -LIMIT), LIMIT)
        z_out[i] = far if is_live else 0.0
        score_out[i] = _least(score, LIMIT) if is_live else 0.0


@njit(**_OPTIONS)
def _score_pass(
    row,
    start,
    n,
    x,
    first,
    floors,
    young,
    tail_x,
    tail_level,
    tail_point,
    tail_spread,
    tail_recent,
    tail_raw,
    tail_center,
    tail_moved,
    tail_scale,
    tail_largest,
    maxima,
    running,
    n_seen,
    n_largest,
    ordered,
    counts,
    z_out,
    score_out,
):
    """Score `n` columns of `x` from `start` on; that is row `row` of the run. See `score_fused`."""
    room = max(SPREAD, LONGEST) + MOST_ROWS
    xs, levels, points, recents = np.empty(room), np.empty(room), np.empty(room), np.empty(room)
    centers, scales, larges = np.empty(room), np.empty(room), np.empty(room)
    recent, z = np.empty((_TESTS, MOST_ROWS)), np.empty((_TESTS, MOST_ROWS))
    few, factor = np.zeros((_TESTS, n), np.bool_), np.empty((_TESTS, n))
    for f in range(x.shape[0]):
        floor, age = floors[f, 0], row - first[f] if first[f] >= 0 else -MOST_ROWS - 1
        _join(tail_x[f], xs)
        for i in range(n):
            xs[LEVEL + i] = x[f, start + i]
        _join(tail_level[f], levels)
        _join(tail_recent[f], recents)
        _join(tail_point[f], points)
        scales[0] = tail_spread[f, 0]
        _medians(row, n, xs, levels, recents, points, scales, ordered[f], counts[f])
        tail_spread[f, 0] = scales[n]
        _point(n, xs, levels, scales, floor, z[0])
        _recents(n, xs, recents, recent)
        for k in range(1, _TESTS):
            w = k - 1
            _held(n, tail_center[w, f], centers)
            _held(n, tail_scale[w, f], scales)
            _window(
                n, _ROWS[k], row % HISTORY, recent[k], levels, centers, scales, floor,
                tail_raw[w, f], tail_moved[w, f], z[k],
            )  # fmt: skip
            _keep(centers, n, tail_center[w, f])
            _keep(scales, n, tail_scale[w, f])
        for k in range(_TESTS):
            _join(tail_largest[k, f], larges)
            running[k, f] = _largest(row, n, z[k], maxima[k, f], running[k, f], larges)
            if f == 0:
                n_seen[k], n_largest[k] = _count(
                    n, _ROWS[k], z[k], larges, n_seen[k], n_largest[k], young, few[k], factor[k]
                )
            _score(
                n, _ROWS[k], _QUIET[k], age, z[k], larges, few[k], factor[k],
                z_out[k, f, start:], score_out[k, f, start:],
            )  # fmt: skip
            _keep(larges, n, tail_largest[k, f])
        _keep(xs, n, tail_x[f])
        _keep(levels, n, tail_level[f])
        _keep(points, n, tail_point[f])
        _keep(recents, n, tail_recent[f])


def _compiled(stamp):
    """What Python calls, with all arguments as one tuple.

    Args:
        stamp: A number that changes with the constants. As part of the functions it keeps numba
            from going on with code that was compiled with other constants.
    """

    @njit(
        "void(Tuple((float64[:,::1],float64[:,::1],float64[:,:,::1],int64[:,::1])))",
        **_KEPT,
    )
    def sort_windows(arguments):
        if stamp:
            _sort_windows(*arguments)

    @njit(
        "void(Tuple((int64,int64,int64,float64[:,::1],int64[::1],float64[:,::1],float64[::1],"
        "float64[:,::1],float64[:,::1],float64[:,::1],float64[:,::1],float64[:,::1],"
        "float64[:,:,::1],float64[:,:,::1],float64[:,:,::1],float64[:,:,::1],float64[:,:,::1],"
        "float64[:,:,::1],float64[:,::1],int64[::1],int64[::1],"
        "float64[:,:,::1],int64[:,::1],float64[:,:,::1],float64[:,:,::1])))",
        **_KEPT,
    )
    def score_pass(arguments):
        if stamp:
            _score_pass(*arguments)

    return sort_windows, score_pass


_PARTS = [(f.py_func.__code__.co_code, f.py_func.__code__.co_consts) for f in (median, slide, sort)]
sort_windows, score_pass = _compiled(1 + zlib.crc32(repr((_CONSTANTS, _PARTS)).encode()))
