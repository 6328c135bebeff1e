"""Logistic regression in a few lines."""

from __future__ import annotations

import numpy as np

from flashback_core.detectors.logistic import fit_logistic, sigmoid


def test_sigmoid_does_not_overflow() -> None:
    """Far out it is 0 and 1, in the middle one half."""
    np.testing.assert_allclose(sigmoid(np.array([-1e9, 0.0, 1e9])), [0.0, 0.5, 1.0], atol=1e-12)


def test_weights_come_back() -> None:
    """From many samples the weights that made the labels come back."""
    rng = np.random.default_rng(3)
    x = np.column_stack([np.ones(20_000), rng.standard_normal((20_000, 2))])
    true = np.array([-1.0, 2.0, 0.5])
    y = (rng.random(20_000) < sigmoid(x @ true)).astype(float)
    np.testing.assert_allclose(fit_logistic(x, y), true, atol=0.1)


def test_separable_labels_stay_finite() -> None:
    """The penalty keeps the weights of separable labels finite."""
    x = np.column_stack([np.ones(10), np.arange(10.0)])
    weights = fit_logistic(x, (np.arange(10) > 4).astype(float))
    assert np.isfinite(weights).all()
    assert (sigmoid(x @ weights).round() == (np.arange(10) > 4)).all()
