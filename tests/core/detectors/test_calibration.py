"""Calibration: budgets become thresholds, alarms become confidences."""

from __future__ import annotations

import numpy as np
import pytest

from flashback_core.detectors.calibration import Confidence, Tail, block_maxima, level_of


def test_block_maxima() -> None:
    """Blocks of about a hundred rows; a short run is one block, an empty one none."""
    assert block_maxima(np.arange(250.0)).tolist() == [124.0, 249.0]
    assert block_maxima(np.arange(30.0)).tolist() == [29.0]
    assert block_maxima(np.empty((3, 0))).shape == (3, 0)


def test_a_tail_is_measured() -> None:
    """Of Pareto block maxima, the ratio at a rate is the one that so many exceed."""
    rng = np.random.default_rng(0)
    index = 0.2
    maxima = rng.random(40_000) ** -index
    tail = Tail.of(maxima, rows=100 * len(maxima))
    for budget in (1.0, 10.0, 100.0):
        share = budget / 1e5 * 100
        assert tail.ratio_at(budget) == pytest.approx(share**-index, rel=0.1)
    assert tail.ratio_at(1.0) > tail.ratio_at(10.0) > tail.ratio_at(100.0)


def test_a_level_is_rarely_exceeded() -> None:
    """The level of a statistic is what about one block in ten thousand exceeds."""
    rng = np.random.default_rng(1)
    level = level_of(rng.random(5_000) ** -0.2)
    assert level == pytest.approx(1e-4**-0.2, rel=0.25)
    assert level_of(np.zeros(50)) == 1.0


def test_confidence_is_the_share_that_is_right() -> None:
    """Fitted to findings whose chance to be right is known, it gives that chance back."""
    rng = np.random.default_rng(2)
    ratio, near = np.exp(rng.uniform(0, 2, 4000)), rng.random(4000)
    truth = 1 / (1 + np.exp(-(-2 + 1.5 * np.log(ratio) + 2 * near)))
    fitted = Confidence.fitted(ratio, near, rng.random(4000) < truth)
    found = np.array([fitted.of(r, n) for r, n in zip(ratio, near, strict=True)])
    assert np.abs(found - truth.clip(max=0.97)).max() < 0.08
    assert fitted.of(1e9, 1.0) == 0.97
