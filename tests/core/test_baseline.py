"""Baselines: trailing statistics that never look ahead."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest

from flashback_core.baseline import (
    delay,
    fill_forward,
    robust_z,
    trailing_max,
    trailing_median,
)

Floats = npt.NDArray[np.float64]

TRAILING: tuple[tuple[str, Callable[[Floats], Floats]], ...] = (
    ("median", lambda x: trailing_median(x, 9, min_rows=4)),
    ("median, every 4", lambda x: trailing_median(x, 8, min_rows=3, every=4)),
    ("max", lambda x: trailing_max(x, 11, min_rows=2)),
    ("z", lambda x: robust_z(x, window=12)),
)


@pytest.fixture
def noise() -> Floats:
    """Three series of 200 rows."""
    return np.random.default_rng(5).standard_normal((3, 200))


@pytest.mark.parametrize(("name", "function"), TRAILING, ids=[name for name, _ in TRAILING])
@pytest.mark.parametrize("rows", [1, 5, 13, 64, 199])
def test_prefix(name: str, function: Callable[[Floats], Floats], rows: int, noise: Floats) -> None:
    """What is said of the first rows does not depend on the rows that follow."""
    np.testing.assert_array_equal(function(noise[:, :rows]), function(noise)[:, :rows])


@pytest.mark.parametrize("window", [1, 2, 8, 9, 33])
def test_against_plain_numpy(noise: Floats, window: int) -> None:
    """Whole windows equal numpy's own median and maximum."""
    x = noise[0]
    rows = range(window - 1, len(x))
    windows = [x[row - window + 1 : row + 1] for row in rows]
    np.testing.assert_allclose(
        trailing_median(x, window)[window - 1 :], [np.median(w) for w in windows]
    )
    np.testing.assert_array_equal(
        trailing_max(x, window)[window - 1 :], [np.max(w) for w in windows]
    )


def test_median_is_held_between_renewals(noise: Floats) -> None:
    """With `every`, the median of the last renewed row stands."""
    often, seldom = (trailing_median(noise, 9, every=every) for every in (1, 4))
    rows = np.arange(12, 200)
    np.testing.assert_array_equal(seldom[:, rows], often[:, rows // 4 * 4])


def test_short_first_windows(noise: Floats) -> None:
    """A median may begin with fewer rows, and not with fewer than asked."""
    median = trailing_median(noise[0], 9, min_rows=4)
    assert np.isnan(median[:3]).all()
    assert median[3] == np.median(noise[0, :4])


def test_leading_nan_rows_are_skipped(noise: Floats) -> None:
    """Rows that are NaN at the start shift the windows and spoil none."""
    late = delay(noise, 10)
    np.testing.assert_array_equal(
        trailing_median(late, 9)[:, 10:], trailing_median(noise[:, :-10], 9)
    )
    assert np.isnan(trailing_max(late, 3)[:, :10]).all()


def test_fill_forward() -> None:
    """NaN and infinity take the last finite value; before the first one, that one."""
    x = np.array([[np.nan, 1.0, np.inf, 2.0], [np.nan, np.nan, np.nan, np.nan]])
    np.testing.assert_array_equal(fill_forward(x), [[1.0, 1.0, 1.0, 2.0], [0.0, 0.0, 0.0, 0.0]])
    assert fill_forward(np.empty((2, 0))).shape == (2, 0)


def test_delay_longer_than_the_run() -> None:
    """Nothing is left of a short series that is delayed by more."""
    assert np.isnan(delay(np.ones(3), 5)).all()


def test_robust_z_of_a_jump(noise: Floats) -> None:
    """One jump gets a large z, and it does not reach its own reference window."""
    x = noise[0].copy()
    x[100] += 50
    z = robust_z(x, window=32)
    assert int(np.argmax(z)) == 100
    assert z[100] > 20
    assert np.abs(np.delete(z, 100)[40:]).max() < 10


def test_robust_z_needs_a_whole_window() -> None:
    """Rows without a whole reference window have no deviation, and constants have none at all."""
    z = robust_z(np.arange(20.0), window=16)
    assert not z[:16].any()
    assert not robust_z(np.ones(40), window=16).any()
