"""Statistical findings: alarm, date, evidence."""

from __future__ import annotations

import numpy as np
import pytest

import flashback_core as fb
from flashback_core.detectors.declared import declared
from flashback_core.detectors.features import features
from flashback_core.detectors.scores import scores
from flashback_core.detectors.statistics import Statistics, confidence, statistics
from flashback_core.testing import run_with_fault

RUN = run_with_fault(first_bad_step=250, kind="update_jump")


def all_at(threshold: float) -> Statistics:
    """Statistics of `RUN` with one threshold for all."""
    names = scores(features(RUN))
    return statistics(RUN, dict.fromkeys(names, threshold), declared(RUN))


def test_the_first_alarm() -> None:
    """The first row over a threshold speaks, and names the statistic furthest over it."""
    alarm = all_at(12.0).first_alarm(len(RUN))
    assert alarm is not None
    assert alarm.row == 250
    assert alarm.statistic.startswith(("update/", "update_lr/"))
    assert all_at(12.0).first_alarm(250) is None


def test_the_finding_explains_itself() -> None:
    """Numbers, steps and the family stand in the sentences; metrics come in order."""
    found = all_at(12.0)
    alarm = found.first_alarm(len(RUN))
    assert alarm is not None
    finding = found.finding(alarm)
    assert (finding.step, finding.kind) == (250, "update_shift")
    assert "update_lr family" in finding.evidence[0] or "update family" in finding.evidence[0]
    assert any(
        "times the median of the 49 steps before, at step 250" in e for e in finding.evidence
    )
    assert [m.step for m in finding.top_metrics] == sorted(m.step for m in finding.top_metrics)
    assert len({m.metric for m in finding.top_metrics}) == len(finding.top_metrics)


def test_relearning_silences() -> None:
    """Rows after which the baseline is learnt anew raise no alarm for a while."""
    names = scores(features(RUN))
    found = statistics(RUN, dict.fromkeys(names, 12.0), declared(RUN), relearn=(250,))
    assert found.score[250:290].max() == 0.0


def test_without_thresholds() -> None:
    """No thresholds, no alarms."""
    found = statistics(RUN, {}, declared(RUN))
    assert found.first_alarm(len(RUN)) is None
    np.testing.assert_array_equal(found.score, 0.0)


def test_confidence_grows_with_the_evidence() -> None:
    """One half at the threshold, and never beyond 0.97."""
    values = [confidence(ratio) for ratio in (1.0, 2.0, 10.0, 1e6)]
    assert values[0] == 0.5
    assert values == sorted(values)
    assert values[-1] == pytest.approx(0.97)


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
