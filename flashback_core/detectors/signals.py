"""Signals: what the rules that need no baseline share."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from flashback_core.report.model import Finding, MetricScore
from flashback_core.table import StepTable

__all__ = ["CERTAIN", "HARD_SCORE", "Bools", "certain", "column_is", "first_run"]

Bools = npt.NDArray[np.bool_]

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


def column_is(table: StepTable, name: str, value: float) -> Bools:
    """Rows at which the column `name` has this very value; none where there is no such column."""
    if name not in table:
        return np.zeros(len(table), dtype=bool)
    return np.asarray(table.column(name) == value)


def first_run(hits: Bools, length: int) -> int | None:
    """Row at which the first `length` hits on end begin."""
    rows = np.arange(len(hits))
    since = rows - np.maximum.accumulate(np.where(hits, -1, rows))
    ends = np.flatnonzero(since >= length)
    return int(ends[0]) - length + 1 if len(ends) else None
