"""`report.downsample`: fewer points, no outlier lost."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flashback_core.report.downsample import min_max_rows


@settings(max_examples=60, deadline=None)
@given(row=st.integers(0, 99_999), size=st.sampled_from([-1e6, 1e6, np.nan, np.inf, -np.inf]))
def test_one_odd_step_is_always_kept(row: int, size: float) -> None:
    """A spike, a NaN or an infinity of a single step survives at any place."""
    values = np.sin(np.arange(100_000) / 50.0)
    values[row] = size
    assert row in min_max_rows(values, 400)


def test_the_budget_holds() -> None:
    """About as many rows as asked for are kept of a million."""
    values = np.random.default_rng(0).normal(size=1_000_000)
    assert 1200 <= len(min_max_rows(values, 1600)) <= 1700


def test_short_series_stay_whole() -> None:
    """A series within the budget keeps every row."""
    np.testing.assert_array_equal(min_max_rows(np.arange(300.0), 400), np.arange(300))


def test_stretches_are_kept_in_full() -> None:
    """Rows round a finding are all there."""
    rows = min_max_rows(np.zeros(100_000), 100, keep=[slice(500, 700)])
    assert set(range(500, 700)) <= set(rows.tolist())


@pytest.mark.parametrize("values", [np.zeros(0), np.full(5000, np.nan), np.full(5000, np.inf)])
def test_nothing_finite_is_no_error(values: np.ndarray) -> None:
    """Empty series and series without a finite value are drawn too."""
    assert len(min_max_rows(values, 100)) <= 120
