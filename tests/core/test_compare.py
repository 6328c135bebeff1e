"""The first step at which two runs part."""

from __future__ import annotations

import numpy as np
import pytest

from flashback_core.compare import first_difference
from flashback_core.errors import SourceError
from flashback_core.table import MemoryTable


def run(steps: range = range(10), **columns: list[float]) -> MemoryTable:
    """A run whose loss is its step, unless said otherwise."""
    return MemoryTable(steps, {"loss": np.array(steps, np.float64)} | columns)


def test_equal_runs() -> None:
    """Equal values, NaN included, never part; wall time does not count."""
    a = run(lr=[np.nan] * 10, step_wall_ms=list(range(10)))
    b = run(lr=[np.nan] * 10, step_wall_ms=list(range(1, 11)))
    parting = first_difference(a, b)
    assert parting.step is None
    assert parting.metrics == ()
    assert (parting.n_common, parting.n_metrics) == (10, 2)


@pytest.mark.parametrize("at", [0, 4, 9])
def test_the_first_difference(at: int) -> None:
    """The earliest step over all metrics, and every metric that differs there."""
    b = run(lr=[0.0] * 10, grad_norm=[1.0] * 10)
    b["lr"][at:] = 5.0
    b["grad_norm"][at:] = np.nan
    b["loss"][9] = -1.0
    parting = first_difference(run(lr=[0.0] * 10, grad_norm=[1.0] * 10), b)
    assert parting.step == at
    names = [name for name, _, _ in parting.metrics]
    assert names == (["loss", "lr", "grad_norm"] if at == 9 else ["lr", "grad_norm"])
    assert parting.metrics[-2][1:] == (0.0, 5.0)


def test_only_common_steps_and_metrics_count() -> None:
    """Runs of different lengths and metrics are compared where they meet."""
    parting = first_difference(run(range(5, 20), lr=[1.0] * 15), run(range(0, 9)))
    assert (parting.step, parting.n_common, parting.n_metrics) == (None, 4, 1)


def test_tolerance_and_large_counts() -> None:
    """`rtol` is relative; without it counts differ from 2**53 on too."""
    a, b = run(lr=[1.0] * 10), run(lr=[1.0 + 1e-6] * 10)
    assert first_difference(a, b).step == 0
    assert first_difference(a, b, rtol=1e-5).step is None
    a, b = (run(nonfinite=np.full(10, 2**53 + i)) for i in (0, 1))
    assert first_difference(a, b).step == 0


def test_nothing_in_common() -> None:
    """Runs that share no step or metric, and a bad tolerance, are clear errors."""
    with pytest.raises(SourceError, match="1 metrics and 0 steps in common"):
        first_difference(run(range(3)), run(range(3, 6)))
    with pytest.raises(SourceError, match="0 metrics and 10 steps"):
        first_difference(run(), MemoryTable(range(10), {"apples": np.zeros(10)}))
    for rtol in (-1.0, np.nan):
        with pytest.raises(ValueError, match="expected 0"):
            first_difference(run(), run(), rtol=rtol)
