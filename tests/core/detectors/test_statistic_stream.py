"""Statistical findings: alarm, date, evidence."""

from __future__ import annotations

import numpy as np
import pytest

import flashback_core as fb
from flashback_core.detectors.calibration import Confidence
from flashback_core.detectors.series import Series
from flashback_core.detectors.statistic_stream import StatisticStream
from flashback_core.table import StepTable
from flashback_core.testing import run_with_fault

RUN = run_with_fault(first_bad_step=250, kind="update_jump")


def series(threshold: float | None, table: StepTable = RUN) -> Series:
    """A series whose statistics all have the same level."""
    names = (*table.names, *table.exact_names)
    silent = StatisticStream(names, {}, lambda _, n, __: np.zeros(n, bool), lambda *_: 0.5)
    levels = {} if threshold is None else dict.fromkeys(silent.names, threshold)
    return Series(names, levels, Confidence())


def test_the_finding_explains_itself() -> None:
    """Numbers, steps and the family stand in the sentences; metrics come in order."""
    (finding,) = [f for f in _found(12.0) if f.kind == "update_shift"]
    assert finding.step == 250
    assert "update_lr family" in finding.evidence[0] or "update family" in finding.evidence[0]
    assert any(
        "times the median of the 49 steps before, at step 250" in e for e in finding.evidence
    )
    assert [m.step for m in finding.top_metrics] == sorted(m.step for m in finding.top_metrics)
    assert len({m.metric for m in finding.top_metrics}) == len(finding.top_metrics)


def _found(threshold: float | None, table: StepTable = RUN) -> list[fb.Finding]:
    one = series(threshold, table)
    found = one.update(table, table.events)
    return found + one.finish()


def test_declared_events_silence() -> None:
    """Rows after which the baseline is learnt anew raise no alarm for a while."""
    event = {"event": "expect", "step": 250, "kind": "data"}
    table = fb.MemoryTable(RUN.steps, {n: RUN.column(n) for n in RUN}, events=[event])
    assert series(12.0, table).values(table, table.events)[:, 250:290].max() == 0.0
    assert _found(12.0, table) == []


def test_without_levels() -> None:
    """No levels, no alarms."""
    assert _found(None) == []


def test_scale() -> None:
    """Thresholds are so many times the levels, and do not change the values."""
    one, other = series(3.0), series(3.0)
    np.testing.assert_array_equal(one.values(RUN), other.values(RUN))
    names = (*RUN.names, *RUN.exact_names)
    levels = dict.fromkeys(one.statistics.names, 3.0)
    high = Series(names, levels, Confidence(), scale=1e4)
    assert high.update(RUN) + high.finish() == []


def _with_spike(rows: slice) -> fb.MemoryTable:
    """A healthy run whose gradients, and nothing else, are 16 times larger at `rows`."""
    healthy = run_with_fault(first_bad_step=None)
    columns = {name: np.array(healthy[name], np.float64) for name in healthy}
    for name, values in columns.items():
        if name.endswith((":grad_norm", ":max_abs")) or name.startswith(("grad_norm", "grad_max")):
            values[rows] *= 16.0
        if name.endswith(":var"):
            values[rows] *= 256.0
    for i in reversed(range(2, 16)):  # two bins of a factor 4
        columns[f"hist_grad:{i}"][rows] = columns[f"hist_grad:{i - 2}"][rows]
    return fb.MemoryTable(healthy.steps, columns)


def test_one_odd_batch_is_information() -> None:
    """A gradient that is large in all groups for one step, updates as ever: no bad step."""
    report = fb.FirstBadStepDetector().predict(_with_spike(slice(250, 251)))
    assert report.status == "healthy"
    assert [(f.step, f.kind, f.severity) for f in report.findings] == [(250, "odd_batch", "info")]


def test_gradients_that_stay_large_are_bad() -> None:
    """The same from one step on is a fault, at that step."""
    report = fb.FirstBadStepDetector().predict(_with_spike(slice(250, None)))
    assert (report.status, report.first_bad_step) == ("bad", 250)


@pytest.mark.parametrize("at", [100, 251, 256, 300])
def test_state(at: int) -> None:
    """Restored at any row, alarms that wait included, the findings are the same."""
    one, other = series(12.0).statistics, series(12.0).statistics
    found = one.update(RUN[:at])
    other.restore(one.state())
    assert found + other.update(RUN[at:]) + other.finish() == _statistical()


def _statistical() -> list[fb.Finding]:
    one = series(12.0).statistics
    return one.update(RUN) + one.finish()
