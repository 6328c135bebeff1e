"""Calibration: budgets become thresholds, alarms become confidences."""

from __future__ import annotations

import numpy as np
import pytest

from flashback_core.detectors.calibration import Confidence, Tail, block_maxima, level_of, peaks


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


def test_what_goes_on_is_one_event() -> None:
    """Of blocks side by side the largest counts, of equal ones the first; each statistic alone."""
    maxima = np.array([[1.0, 5.0, 3.0, 2.0, 4.0, 4.0], [0.0, 0.0, 7.0, 0.0, 1.0, 2.0]])
    expected = [[0, 5, 0, 0, 4, 0], [0, 0, 7, 0, 0, 2]]
    assert peaks(maxima).tolist() == expected
    assert peaks(maxima[0]).tolist() == expected[0]
    assert maxima[0, 0] == 1.0
    assert peaks(np.zeros((3, 0))).shape == (3, 0)
    assert peaks(np.ones((2, 1))).tolist() == [[1.0], [1.0]]


def test_a_long_event_does_not_raise_the_level() -> None:
    """An instability that lasts ten blocks counts as one that lasts one."""
    rng = np.random.default_rng(5)
    calm = rng.exponential(size=2000)
    long, short = calm.copy(), calm.copy()
    long[1000:1010], short[1000] = 50.0, 50.0
    assert level_of(peaks(long)) == pytest.approx(level_of(peaks(short)), rel=0.05)
    assert level_of(long) > 1.2 * level_of(short)


def test_one_strong_alarm_that_was_wrong() -> None:
    """A run that breaks by itself, far over its threshold, does not flatten the confidence."""
    rng = np.random.default_rng(0)
    ratios = rng.uniform(0.8, 6.0, 100)
    right = rng.random(100) < 1 / (1 + np.exp(-4 * np.log(ratios / 1.2)))
    usual = Confidence.fitted(ratios, np.ones(100), right)
    odd = Confidence.fitted([*ratios, 30.0], np.ones(101), [*right, False])
    for ratio in (1.0, 2.0, 5.0):
        assert odd.of(ratio, 1.0) == pytest.approx(usual.of(ratio, 1.0), abs=0.05)


@pytest.mark.parametrize("border", [0.5, 1.5, 9.0])
def test_labels_that_one_border_divides(border: float) -> None:
    """Nothing overflows where all findings were right, or all above a ratio."""
    ratios = np.linspace(0.8, 6.0, 30)
    fitted = Confidence.fitted(ratios, np.ones(30), ratios > border)
    found = [fitted.of(ratio, 1.0) for ratio in (0.1, 1.0, 3.0, 1e3)]
    assert all(0.0 <= x <= 0.97 for x in found)
    assert found == sorted(found)
