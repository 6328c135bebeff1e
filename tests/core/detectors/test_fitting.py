"""Fitting: what counts as healthy, and for whom."""

from __future__ import annotations

import numpy as np
import pytest

from flashback_core.detectors import FirstBadStepDetector
from flashback_core.detectors.fitting import fitted
from flashback_core.table import MemoryTable
from flashback_core.testing import healthy_run


def lower_rate(run: MemoryTable, row: int, *, declared: bool) -> MemoryTable:
    """`run` with a tenth of the learning rate from `row` on, and updates that follow it."""
    columns = {name: np.array(run.column(name), dtype=np.float64) for name in run}
    for name, values in columns.items():
        if name == "lr" or name.split(":")[-1] in ("update_norm", "upd_param_ratio", "update_max"):
            values[row:] /= 10.0
    events = [{"event": "expect", "kind": "lr_milestone", "step": row}] if declared else []
    return MemoryTable(run.steps, columns, events=events)


@pytest.mark.parametrize("declared", [False, True])
def test_a_rate_that_moves_undeclared_is_healthy_only_where_it_is_seen(declared: bool) -> None:
    """Levels for runs without a rate are not raised by jumps of a rate that nobody declared."""
    runs = [healthy_run(300, seed=seed) for seed in range(4)]
    moved = lower_rate(healthy_run(300, seed=9), 200, declared=declared)
    nothing = [None] * 5
    usual = fitted(runs, nothing[:4], None, min_steps=52).levels
    levels = fitted([*runs, moved], nothing, None, min_steps=52).levels
    hidden = moved[[name for name in moved if name != "lr"]]
    assert levels["update/point/third"] <= 3 * usual["update/point/third"]
    if not declared:
        detector = FirstBadStepDetector().fit([*runs, moved], nothing)
        assert detector.predict(hidden).first_bad_step == 200
        assert detector.predict(moved).status == "healthy"
