"""Confidence intervals."""

from __future__ import annotations

import math

import numpy as np
import pytest

from flashback_core.forensics.intervals import binomial_tail, poisson, wilson


def test_wilson_equals_the_published_example() -> None:
    """Six of six has a lower bound of 61 %."""
    assert wilson(6, 6) == pytest.approx((0.6096657, 1.0), abs=1e-6)


def test_wilson_is_symmetric() -> None:
    """Hits and misses change places."""
    low, high = wilson(3, 10)
    assert wilson(7, 10) == pytest.approx((1 - high, 1 - low))


def test_poisson_equals_the_table() -> None:
    """Ten events: 4.80 to 18.39 (Garwood)."""
    assert poisson(10, 1.0) == pytest.approx((4.795, 18.391), abs=2e-3)
    assert poisson(10, 4.0) == pytest.approx((4.795 / 4, 18.391 / 4), abs=2e-3)


def test_poisson_covers_a_known_rate() -> None:
    """At least 95 % of the intervals hold the mean."""
    counts = np.random.default_rng(3).poisson(4.0, 400)
    held = [low <= 4.0 <= high for low, high in (poisson(int(n), 1.0) for n in counts)]
    assert np.mean(held) > 0.93


def test_nothing_has_no_interval() -> None:
    """No runs, no steps: nan."""
    assert all(map(math.isnan, (*wilson(0, 0), *poisson(0, 0.0))))


def test_binomial_tail_is_the_sum_of_the_rest() -> None:
    """Three or more sixes of four dice; none or more is certain."""
    assert binomial_tail(3, 4, 1 / 6) == pytest.approx(21 / 1296)
    assert binomial_tail(0, 4, 1 / 6) == pytest.approx(1.0)
    assert binomial_tail(1, 4, 0.0) == 0.0
    assert math.isnan(binomial_tail(0, 0, 0.5))
