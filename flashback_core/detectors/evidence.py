"""Evidence: what moved, in which order, in sentences with numbers."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from flashback_core.detectors.features import Feature, Features
from flashback_core.detectors.scores import LEVEL
from flashback_core.report.model import MetricScore
from flashback_core.table import StepTable

__all__ = ["KINDS", "describe", "moved_first"]

Floats = npt.NDArray[np.float64]

KINDS = {
    "loss": "loss_shift",
    "gradient": "gradient_shift",
    "update": "update_shift",
    "update_lr": "update_shift",
    "composition": "balance_shift",
    "peak": "outlier",
    "sign": "sign_shift",
    "histogram": "distribution_shift",
    "parameter": "weight_shift",
}
"""What a finding is called when a family of features raised the alarm."""

MOVED = 4.0
"""Deviations from which a metric has moved."""
TOP = 8
"""Metrics that a finding names."""


def moved_first(
    table: StepTable, found: Features, z: Floats, begin: int
) -> tuple[MetricScore, ...]:
    """The metrics that moved, in the order in which they did; the strongest first in a step.

    Args:
        table: The run.
        found: Its features.
        z: Point deviations of shape (features, rows) from the onset on.
        begin: Row of the first of them.

    Returns:
        At most `TOP` scores, each metric once.
    """
    moved = np.abs(z) >= MOVED
    ranked = []
    for j in np.flatnonzero(moved.any(axis=1)):
        at = int(np.argmax(moved[j]))
        ranked.append((at, -float(np.abs(z[j, at : at + 3]).max()), found.items[j].metric))
    seen: dict[str, MetricScore] = {}
    for at, score, metric in sorted(ranked):
        step = int(table.steps[begin + at])
        seen.setdefault(metric, MetricScore(metric=metric, score=round(-score, 2), step=step))
    return tuple(seen.values())[:TOP]


def describe(table: StepTable, found: Features, j: int, row: int, z: float) -> str:
    """One sentence on what feature `j` did at `row`, against the steps before it."""
    item, values = found.items[j], found.values[j]
    before = values[max(row - LEVEL, 0) : row]
    moved = float(values[row] - np.median(before)) if len(before) else 0.0
    raw = float(np.asarray(table.column(item.metric), np.float64)[row])
    now = f" ({raw:.4g})" if item.label == item.metric else ""
    return (
        f"{item.label}{now} {_change(item, moved)} the median of the {len(before)} steps before, "
        f"at step {int(table.steps[row])}: {abs(z):.1f} robust deviations ({item.family})."
    )


def _change(item: Feature, moved: float) -> str:
    """What a move of the feature means in the units that people know."""
    if item.family == "sign":
        return f"had odds {np.exp(min(moved, 690.0)):.3g} times"
    in_logs = item.family != "parameter" and not item.label.startswith(("mean bin", "width"))
    if in_logs:
        return f"was {np.exp(min(moved, 690.0)):.3g} times"
    return f"was {moved:+.3g} against"
