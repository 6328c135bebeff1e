"""Windows in order, and their medians."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("numba")

from flashback_core.detectors import window_kernels as kernels


@pytest.mark.parametrize("decimals", [0, 12])
def test_a_window_that_slides(decimals: int) -> None:
    """Sliding gives what sorting anew gives, with ties and values that are not known."""
    rng, size = np.random.default_rng(4), 9
    x = np.round(rng.standard_normal(300), decimals)
    x[:6] = np.nan
    ordered = np.empty(kernels.padded(size) + 2)
    count = kernels.sort(x[:size], ordered)
    for i in range(size, 300):
        count += kernels.slide(ordered, kernels.padded(size), x[i - size], x[i])
        window = x[i - size + 1 : i + 1]
        known = np.sort(window[~np.isnan(window)])
        assert count == len(known)
        np.testing.assert_array_equal(ordered[1 : count + 1], known)
        assert np.isposinf(ordered[count + 1 :]).all()
        assert kernels.median(ordered, count, 2) == np.median(known)
    assert np.isnan(kernels.median(ordered, 1, 2))


@pytest.mark.parametrize("decimals", [0, 12])
def test_median_of_two_halves(decimals: int) -> None:
    """Two halves in order and one value more have the median of all of them, ties included."""
    rng = np.random.default_rng(1)
    a, b = np.round(rng.standard_normal((2, 3, 200, 64)), decimals)
    b += np.linspace(-4.0, 4.0, 200)[:, None]
    one = np.round(3 * rng.standard_normal((3, 200)), decimals)
    out = np.empty((3, 200))
    kernels.median_pass(np.sort(a, axis=-1), np.sort(b, axis=-1), one, out)
    expected = np.median(np.concatenate([a, b, one[..., None]], axis=-1), axis=-1)
    np.testing.assert_array_equal(out, expected)
