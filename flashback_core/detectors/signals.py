"""Signals: what the rules that need no baseline share."""

from __future__ import annotations

from flashback_core.report.model import Finding, MetricScore

__all__ = ["CERTAIN", "HARD_SCORE", "certain"]

CERTAIN = 0.99
"""Confidence of a finding that needs no baseline."""
HARD_SCORE = 1e6
"""Score of a metric that needs none."""
TOP = 8


def certain(
    step: int, kind: str, *texts: str, metrics: dict[str, int], severity: str = "bad"
) -> Finding:
    """A finding at exactly `step`.

    Args:
        step: The step.
        kind: What it is called.
        texts: Its evidence.
        metrics: Metrics that show it and the step at which each does, in order.
        severity: As in `Finding`.
    """
    scores = (MetricScore(metric=m, score=HARD_SCORE, step=at) for m, at in metrics.items())
    return Finding(
        step=step,
        interval=(step, step),
        kind=kind,
        confidence=CERTAIN,
        severity=severity,
        evidence=texts,
        top_metrics=tuple(scores)[:TOP],
    )
