"""The kernels of the scores: the windows that they keep in order."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("numba")

from flashback_core.detectors import score_kernels as kernels


def test_windows_in_order() -> None:
    """A window holds its known values in order, between −∞ and ∞."""
    x = np.full((1, 49), np.nan)
    x[0, 40:] = [3.0, 1.0, 2.0, 2.0, 9.0, -4.0, 0.0, 5.0, 7.0]
    ordered = np.empty((1, 3, kernels.WIDTH))
    counts = np.empty((1, 3), np.int64)
    kernels.sort_windows((x, np.full((1, 65), np.nan), ordered, counts))
    assert counts.tolist() == [[9, 9, 0]]
    assert ordered[0, 0, :11].tolist() == [-np.inf, -4, 0, 1, 2, 2, 3, 5, 7, 9, np.inf]
    assert np.isinf(ordered[0, 2]).all()
