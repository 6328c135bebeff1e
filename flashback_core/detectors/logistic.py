"""Logistic regression, small enough to need no package."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["fit_logistic", "sigmoid"]

Floats = npt.NDArray[np.float64]


def sigmoid(x: Floats) -> Floats:
    """1 / (1 + exp(-x)), without overflow."""
    return np.asarray(1.0 / (1.0 + np.exp(-np.clip(x, -60.0, 60.0))))


def fit_logistic(x: Floats, y: Floats, *, ridge: float = 1e-2, rounds: int = 50) -> Floats:
    """Weights of a logistic regression, by Newton's method.

    Args:
        x: Features of shape (samples, features); the first one is the constant 1.
        y: Labels, 0.0 or 1.0.
        ridge: Penalty on the squared weights; the first weight, the bias, has next to none.
        rounds: Most steps of Newton's method.

    Returns:
        Weights of shape (features,).
    """
    weights = np.zeros(x.shape[1])
    penalty = np.full(x.shape[1], ridge)
    penalty[0] = 1e-6
    for _ in range(rounds):
        p = sigmoid(x @ weights)
        slope = x.T @ (y - p) - penalty * weights
        if np.abs(slope).max() < 1e-6:
            break
        curve = (x * (p * (1 - p))[:, None]).T @ x + np.diag(penalty)
        weights += np.linalg.solve(curve, slope)
    return weights
