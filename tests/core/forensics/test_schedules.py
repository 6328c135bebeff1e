"""Learning-rate schedules."""

from __future__ import annotations

import numpy as np
import pytest

from flashback_core.forensics.config import SCHEDULES
from flashback_core.forensics.schedules import lr_factor, milestones


def curve(name: str, planned: int = 400, n: int = 400) -> np.ndarray:
    """Factors of all steps."""
    return np.array([lr_factor(name, s, planned_steps=planned, warmup=20) for s in range(n)])


@pytest.mark.parametrize("name", SCHEDULES)
def test_factor_stays_above_zero(name: str) -> None:
    """A schedule is never 0 or above 1, past its planned end too."""
    factors = curve(name, n=600)
    assert float(factors.min()) > 0
    assert float(factors.max()) <= 1.0


@pytest.mark.parametrize("name", SCHEDULES)
def test_jumps_are_the_milestones(name: str) -> None:
    """After warm-up the rate jumps by more than a tenth of its peak at milestones only."""
    factors = curve(name)
    jumps = np.flatnonzero(np.abs(np.diff(factors)) > 0.1) + 1
    assert [int(j) for j in jumps if j > 20] == milestones(name, planned_steps=400, n_steps=400)


def test_warmup_is_linear() -> None:
    """The first steps rise to the full rate."""
    assert curve("constant")[:21].tolist() == pytest.approx(
        [min(1, (i + 1) / 20) for i in range(21)]
    )


def test_milestones_past_the_end_are_left_out() -> None:
    """A run that is cut short has none that it does not reach."""
    assert milestones("step", planned_steps=4000, n_steps=400) == []
    assert milestones("sgdr", planned_steps=200, n_steps=160) == [50, 100, 150]
