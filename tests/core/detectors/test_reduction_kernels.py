"""Statistics by numba: to the last bit those of numpy."""

from __future__ import annotations

import numpy as np
import pytest

from flashback_core.detectors.feature_stream import FeatureStream
from flashback_core.detectors.reduction import Reduction
from flashback_core.testing import healthy_run

pytest.importorskip("numba")


@pytest.mark.parametrize("n", [1, 2, 5, 32, 256])
def test_every_bit(monkeypatch: pytest.MonkeyPatch, n: int) -> None:
    """All statistics of the default metrics, with ties, zeros and groups that have no say."""
    reduction = Reduction(FeatureStream(healthy_run(2).names).items)
    n_features = len(FeatureStream(healthy_run(2).names).items)
    rng = np.random.default_rng(n)
    z = np.round(rng.standard_t(2.0, (4, n_features, n)), 2)
    z[:, rng.random(n_features) < 0.3] = 0.0
    score = np.abs(z) * rng.uniform(0.5, 40.0, z.shape)
    monkeypatch.setenv("FLASHBACK_BACKEND", "flat")
    expected = reduction(z, score)
    monkeypatch.delenv("FLASHBACK_BACKEND")
    np.testing.assert_array_equal(reduction(z, score), expected)
    assert expected.shape == (len(reduction.names), n)
