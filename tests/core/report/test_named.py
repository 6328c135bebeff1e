"""`report.named`: values of what certain findings name."""

from __future__ import annotations

from typing import Any

from flashback_core.report.checks import broken
from flashback_core.report.model import Finding, MetricScore
from flashback_core.report.window import around


def certain(step: int, kind: str, *metrics: str, **more: Any) -> Finding:
    """A finding that needs no statistics, with the metrics that it names."""
    scores = tuple(MetricScore(metric=m, score=1e6, step=step) for m in metrics)
    given = {"severity": "bad", "confidence": 0.99} | more
    return Finding(step=step, interval=(step, step), kind=kind, top_metrics=scores, **given)


def names(report) -> list[tuple[int, str, str]]:
    """Step, name and meaning of each check."""
    window = around(report.table, report.bad)
    assert window is not None
    return [(c.step, c.name, c.meaning) for c in broken(window, report)]


def test_a_rate_off_its_schedule(make_run, make_bad) -> None:
    """The learning rate stands in the table with its value before and then, in words."""
    later = certain(390, "loss_zero", "loss")
    report = make_bad(make_run(fault_step=240), 240, metrics=("lr",), others=(later,))
    assert names(report) == [
        (240, "lr", "the learning rate jumped"),
        (390, "loss", "the loss fell to exactly zero"),
    ]


def test_what_is_no_certainty_is_not_listed(make_run, make_bad) -> None:
    """Statistics, information and metrics that the run does not have give no row."""
    others = (
        certain(300, "skipped_step", "loss", severity="info"),
        certain(310, "loss_zero", "no such metric"),
        certain(9_999, "loss_zero", "loss"),
    )
    report = make_bad(make_run(), 240, kind="outlier", metrics=("loss",), others=others)
    assert names(report) == []


def test_a_resume_that_lost_something_is_said_once(make_run, make_bad) -> None:
    """Where an event names what was lost, the digest that shows it needs no row."""
    events = ({"event": "resume_check", "step": 240, "differs": ["the optimizer"]},)
    report = make_bad(make_run(events=events), 240, kind="outlier")
    lost = certain(240, "resume_discontinuity", "exact:state_hash")
    report = make_bad(report.table, 240, kind="outlier", others=(lost,))
    assert [name for _, name, _ in names(report)] == ["the optimizer"]
