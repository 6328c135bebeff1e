"""The floor: what the loss curve alone tells."""

from __future__ import annotations

import numpy as np
import pytest

from flashback_core.detectors import LossCurveDetector
from flashback_core.errors import DetectorError, NoBaselineError
from flashback_core.table import MemoryTable
from flashback_core.testing import healthy_run, run_with_fault


def test_blind_where_the_loss_does_not_move() -> None:
    """Updates that go wrong without the loss are not its business: that is why it is the floor."""
    run = run_with_fault(first_bad_step=200, kind="update_jump")
    assert LossCurveDetector().predict(run).status == "healthy"


def test_non_finite_from_the_loss() -> None:
    """The first NaN or infinite loss is the first bad step."""
    loss = 2.0 - 0.001 * np.arange(60)
    loss[41:] = np.nan
    report = LossCurveDetector().predict(MemoryTable(np.arange(60), {"loss": loss}))
    assert (report.first_bad_step, report.kind) == (41, "nonfinite")


def test_scale_of_the_loss_does_not_matter() -> None:
    """A loss in other units gives the same scores."""
    run = run_with_fault(first_bad_step=150)
    scaled = MemoryTable(run.steps, {"loss": 1000 * run.column("loss")})
    detector = LossCurveDetector()
    np.testing.assert_allclose(detector.score(run), detector.score(scaled), rtol=1e-4)


def test_fit_raises_the_threshold_over_the_healthy_runs() -> None:
    """After a fit no healthy run alarms, and the settings keep their names."""
    runs = [healthy_run(seed=seed) for seed in range(4)]
    detector = LossCurveDetector(threshold=0.1).fit(runs, [None] * 4)
    assert all(detector.predict(run).status == "healthy" for run in runs)
    assert repr(detector).startswith("LossCurveDetector(window=32, threshold=")


def test_not_enough_data() -> None:
    """Fewer steps than the window give no verdict, and nothing to fit on."""
    assert LossCurveDetector().predict(healthy_run(20)).status == "not_enough_data"
    with pytest.raises(NoBaselineError, match="longer runs"):
        LossCurveDetector().fit([healthy_run(20)], [None])


def test_settings_are_checked() -> None:
    """A window of two or a threshold of zero is refused."""
    with pytest.raises(DetectorError, match="window"):
        LossCurveDetector(window=2)
