"""`report.surprise`: how far off a metric is, for the drawings."""

from __future__ import annotations

import numpy as np
import pytest

from flashback_core.report.surprise import (
    CAP,
    Scale,
    block_surprise,
    lost_rows,
    row_surprise,
    trailing,
)


def noise(n: int = 400, seed: int = 0) -> np.ndarray:
    """Positive noise of 10 %."""
    return np.exp(np.random.default_rng(seed).normal(0, 0.1, n))


def test_a_jump_stands_out() -> None:
    """A factor of 8 is far above, the noise before it is not."""
    values = noise()
    values[200:] *= 8
    z = row_surprise(values, frozen_from=200)
    assert (z[200:] > 10).all()
    assert np.nanmax(np.abs(z[:200])) < 8


def test_a_window_that_moves_on_forgets() -> None:
    """Without freezing, what was new becomes usual; frozen, it stays surprising."""
    values = noise()
    values[200:] *= 8
    assert abs(row_surprise(values)[330]) < 6
    assert row_surprise(values, frozen_from=200)[330] > 10


def test_one_nan_does_not_blind() -> None:
    """A NaN counts fully itself, and the steps after it are judged as before."""
    values = noise()
    values[100] = np.nan
    z = row_surprise(values)
    assert z[100] == CAP
    assert np.isfinite(z[101:]).all()


def test_a_metric_logged_now_and_then_is_not_lost() -> None:
    """NaN in a column of evaluations every tenth step means nothing."""
    values = np.full(400, np.nan)
    values[::10] = 1.0
    assert not lost_rows(values).any()
    assert np.isnan(row_surprise(values)).any()


def test_zero_is_far_below_on_a_logarithmic_scale() -> None:
    """An update that becomes exactly zero is surprising, not minus infinity."""
    values = noise()
    values[300:] = 0
    z = row_surprise(values, frozen_from=300)
    assert (z[300:] < -15).all()
    assert np.isfinite(z[300:]).all()


def test_too_few_steps_give_no_answer() -> None:
    """Before eight values nothing is compared."""
    assert np.isnan(row_surprise(noise(20))[:8]).all()


def test_a_stray_entry_in_an_empty_bin_is_chance() -> None:
    """A histogram bin that rarely counts one entry is not surprising when it does."""
    counts = np.zeros(300, np.int64)
    counts[[40, 90, 200]] = 1
    assert np.nanmax(np.abs(row_surprise(counts, counts=True))) < 4


def test_blocks_show_a_spike_of_one_step() -> None:
    """One odd step among 100 000 colours its block, and only that."""
    values = noise(100_000)
    values[54_321] = 30.0
    starts = np.arange(0, 100_000, 1000)
    z = block_surprise(values, starts)
    assert int(np.nanargmax(np.abs(z))) == 54
    assert z[54] > 16


@pytest.mark.parametrize(
    "values", [np.zeros(50), np.full(50, np.nan), np.arange(-25.0, 25.0), np.full(50, 1e308)]
)
def test_any_column_has_an_answer(values: np.ndarray) -> None:
    """Constant, missing, negative and huge columns raise and warn nothing."""
    assert row_surprise(values).shape == values.shape
    assert block_surprise(values, np.arange(0, 50, 5)).shape == (10,)


def test_scale_goes_back() -> None:
    """`back` undoes `forward` on both scales."""
    for values in (noise(10), noise(10) - 1.0):
        scale = Scale.of(values)
        np.testing.assert_allclose(scale.back(scale.forward(values)), values)


def test_the_band_holds_the_noise() -> None:
    """Four spreads on both sides of the centre hold almost all healthy values."""
    values = noise(2000)
    centre, spread = trailing(values)
    inside = np.abs(np.log(values[64:]) - centre[64:]) < 4 * spread[64:]
    assert inside.mean() > 0.99
