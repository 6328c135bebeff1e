"""Merging: several signs of one fault are one finding."""

from __future__ import annotations

from flashback_core.detectors.merging import joined, merged, with_learning
from flashback_core.report.model import Finding, MetricScore


def finding(step: int, kind: str, *, severity: str = "bad", last: int | None = None) -> Finding:
    """A finding with a sentence and a metric of its own."""
    return Finding(
        step=step,
        interval=(step, last or step),
        kind=kind,
        confidence=0.6,
        severity=severity,
        evidence=(kind,),
        top_metrics=(MetricScore(metric=kind, score=1.0, step=step),),
    )


def test_a_statistic_joins_what_is_certain() -> None:
    """Close to a certain finding it becomes its evidence, far from it a finding of its own."""
    certain = [finding(100, "lr_jump")]
    (one,) = merged(certain, finding(101, "update_shift"))
    assert (one.step, one.kind, one.evidence) == (100, "lr_jump", ("lr_jump", "update_shift"))
    assert [f.step for f in merged(certain, finding(60, "update_shift"))] == [100, 60]
    assert merged(certain, None) == certain


def test_a_change_takes_no_evidence() -> None:
    """A finding that is not bad is not joined."""
    certain = [finding(100, "lr_milestone", severity="change")]
    assert len(merged(certain, finding(101, "update_shift"))) == 2


def test_a_divergence_is_the_outcome_of_a_fault() -> None:
    """With a cause before it, a divergence is evidence; alone it is the finding."""
    diverged = finding(90, "divergence", last=140)
    (one,) = with_learning([finding(100, "lr_jump")], [diverged], certain=True)
    assert (one.step, one.evidence) == (100, ("lr_jump", "divergence"))
    assert with_learning([], [diverged], certain=False) == [diverged]
    later = [finding(300, "update_shift")]
    assert with_learning(later, [diverged], certain=False) == [*later, diverged]


def test_never_learns_only_where_nothing_explains_it() -> None:
    """A run that broke early has a better answer than that it never learnt."""
    never = finding(0, "never_learns")
    assert with_learning([finding(9, "nonfinite")], [never], certain=True)[0].step == 9
    assert with_learning([], [never], certain=False) == [never]


def test_joined_keeps_each_metric_once() -> None:
    """The first finding's metrics come first, and none comes twice."""
    both = joined(finding(1, "a"), joined(finding(2, "b"), finding(3, "a")))
    assert [m.metric for m in both.top_metrics] == ["a", "b"]
