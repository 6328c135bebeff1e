"""`report.charts`: what is drawn, as plain specifications."""

from __future__ import annotations

import numpy as np

from flashback_core.report import charts
from flashback_core.report.chart_timeline import skipped
from flashback_core.report.html import to_html
from flashback_core.report.model import Finding
from flashback_core.report.spec import HeatMap, Lanes, Panel
from flashback_core.table import MemoryTable


def test_all_charts_of_a_full_run(spiked) -> None:
    """A full run with a finding has every chart."""
    names = set(charts.all_charts(spiked.table, spiked))
    assert {"timeline", "surprise", "gradients", "updates", "moved-1"} <= names


def test_a_spike_of_one_step_is_in_the_timeline(make_run, make_report) -> None:
    """The loss of 200 000 steps keeps its one bad step when drawn."""
    loss = np.ones(200_000)
    loss[123_456] = 50.0
    report = make_report(MemoryTable(np.arange(200_000), {"loss": loss}), "healthy")
    stack = charts.timeline(report.table, report)
    assert stack is not None
    panel = stack.charts[0]
    assert isinstance(panel, Panel)
    assert 123_456 in panel.lines[0].steps
    assert len(panel.lines[0].steps) < 2500


def test_small_charts_follow_the_order_of_moving(spiked) -> None:
    """The small charts stand in the order in which the metrics moved."""
    panels = charts.moved_first(spiked.table, spiked)
    assert [p.name for p in panels][:3] == [m.metric for m in spiked.top_metrics]
    assert "at step 240" in panels[0].note


def test_few_named_metrics_are_followed_by_what_lay_far_off(make_run, make_bad) -> None:
    """A finding that names one field still shows what moved, and the page says whose it is."""
    report = make_bad(make_run(fault_step=240), 240, metrics=("exact:outside",))
    panels = charts.moved_first(report.table, report)
    assert len(panels) == 6
    assert all("update" in p.name or p.name == "lr" or "upd_" in p.name for p in panels)
    assert "The charts are not part of the finding" in to_html(report)
    named = make_bad(make_run(fault_step=240), 240, metrics=("lr",))
    assert "Charts from the second on are not part" in to_html(named)


def test_a_report_without_scores_finds_what_moved(make_run, make_bad) -> None:
    """Where the detector names no metric, those furthest off are shown."""
    report = make_bad(make_run(fault_step=240), 240, metrics=())
    names = [p.name for p in charts.moved_first(report.table, report)]
    assert names
    assert all("update" in n or n == "lr" or "hist" in n or "upd_" in n for n in names)


def test_surprise_points_at_the_parts_that_moved(spiked) -> None:
    """The learning rate row lights up from the step on, the loss row does not."""
    chart = charts.surprise(spiked.table, spiked)
    assert chart is not None
    lr, loss = (chart.values[chart.rows.index(n)] for n in ("learning rate", "loss"))
    at = int(np.searchsorted(chart.edges, 240)) - 1
    assert np.abs(lr[at:]).min() > 8
    assert np.nanmax(np.abs(loss)) < 8


def test_histograms_are_shares(spiked) -> None:
    """Each column of a histogram adds up to one."""
    chart = charts.histogram(spiked.table, spiked, "update")
    assert chart is not None
    np.testing.assert_allclose(chart.values.sum(axis=0), 1.0)
    assert len(chart.rows) == 16


def test_events_have_lanes(spiked) -> None:
    """Findings, resumes and epochs are marked under the timeline."""
    stack = charts.timeline(spiked.table, spiked)
    assert stack is not None
    lanes = stack.charts[-1]
    assert isinstance(lanes, Lanes)
    assert {"found", "resumed", "epochs"} <= {label for label, _ in lanes.lanes}
    assert any(isinstance(c, HeatMap) for c in stack.charts)


def test_many_skipped_steps_stay_spread_over_the_run() -> None:
    """When single marks are too many, blocks still cover the whole run and count all."""
    n = 100_000
    table = MemoryTable(np.arange(n), {"exact:step_skipped": (np.arange(n) % 3 == 0).astype(int)})
    marks = list(skipped(table))
    assert len(marks) <= 400
    assert marks[-1].last is not None
    assert marks[-1].last > n - 10


def test_sparse_metrics_are_joined(make_report) -> None:
    """A loss logged every tenth row is a line of its values, not of gaps."""
    loss = np.full(1000, np.nan)
    loss[::10] = np.linspace(3, 1, 100)
    table = MemoryTable(np.arange(1000), {"loss": loss})
    report = make_report(table, "healthy")
    panel = charts.timeline(table, report).charts[0]
    assert np.isfinite(panel.lines[0].values).all()
    assert len(panel.lines[0].values) == 100


def test_nothing_to_draw(make_report) -> None:
    """An empty run has no charts and no error."""
    table = MemoryTable([], {"loss": []})
    assert charts.all_charts(table, make_report(table, "not_enough_data")) == {}


def test_a_resume_is_no_surprise(make_run, make_report) -> None:
    """What is missing in the first row of a recording is not drawn as lost; NaN elsewhere is."""
    events = ({"event": "session", "step": 0}, {"event": "session", "step": 150})
    for row, is_lost in ((150, False), (151, True)):
        table = make_run(events=events)
        table.column("group:head:sign_flip")[row] = np.nan
        drawn = charts.surprise_run(table, make_report(table, "healthy"))
        head = drawn.values[drawn.rows.index("head")]
        assert (np.nanmax(np.abs(head)) > 90) == is_lost


def test_too_few_steps_are_no_mark(make_run, make_report) -> None:
    """That a run is too short stands in words, not as a mark at its first step."""
    table = make_run(20)
    short = Finding(
        step=0, interval=(0, 0), kind="not_enough_data", confidence=0.0, severity="info"
    )
    stack = charts.timeline(table, make_report(table, "not_enough_data", findings=(short,)))
    assert not any(c.rules for c in stack.charts if isinstance(c, Panel))
    assert not any(isinstance(c, Lanes) for c in stack.charts)
