"""Evidence: what moved, in which order, in sentences with numbers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from flashback_core.detectors.features import Feature
from flashback_core.detectors.score_stream import LEVEL
from flashback_core.report.model import MetricScore

__all__ = ["KINDS", "Moves", "describe", "moved_first"]

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
SPAN = 17
"""Rows from the onset on in which metrics move first."""


@dataclass(frozen=True)
class Moves:
    """A stretch of rows around an alarm: what is needed to say what moved.

    Attributes:
        items: The features.
        columns: Names of the columns that they are made of.
        start: Row of the run that the stretch begins with.
        steps: Step of each row, (rows,).
        values: The features, (features, rows).
        raw: The columns, (columns, rows).
        point: Signed point deviations, (features, rows).
    """

    items: tuple[Feature, ...]
    columns: tuple[str, ...]
    start: int
    steps: npt.NDArray[np.int64]
    values: Floats
    raw: Floats
    point: Floats

    def step(self, row: int) -> int:
        """Step of `row`."""
        return int(self.steps[row - self.start])

    def at(self, row: int) -> Floats:
        """Point deviations at `row`, (features,)."""
        return self.point[:, row - self.start]


def moved_first(moves: Moves, onset: int) -> tuple[MetricScore, ...]:
    """The metrics that moved, in the order in which they did; the strongest first in a step.

    Args:
        moves: The rows around the alarm.
        onset: Row from which on they may have moved.

    Returns:
        At most `TOP` scores, each metric once.
    """
    begin = onset - moves.start
    z = np.abs(moves.point[:, begin : begin + SPAN])
    ranked = []
    moved = (z >= MOVED).any(axis=1)
    itself = {
        moves.items[j].metric for j in np.flatnonzero(moved).tolist() if not _is_share(moves, j)
    }
    for j in np.flatnonzero(moved).tolist():
        at = int(np.argmax(z[j] >= MOVED))
        if _is_share(moves, j) and moves.items[j].metric not in itself:
            continue  # its share moved because the whole did
        if _fell_behind(moves, j, begin + at) and _bottom(moves, j) in itself:
            continue  # the norm grew, not the largest entry
        ranked.append((at, -float(z[j, at : at + 3].max()), moves.items[j].metric))
    seen: dict[str, MetricScore] = {}
    for at, score, metric in sorted(ranked):
        step = int(moves.steps[begin + at])
        seen.setdefault(metric, MetricScore(metric=metric, score=round(-score, 2), step=step))
    return tuple(seen.values())[:TOP]


def _is_share(moves: Moves, j: int) -> bool:
    return moves.items[j].family == "composition"


def _fell_behind(moves: Moves, j: int, at: int) -> bool:
    """Whether the largest entry fell behind the norm that it is divided by."""
    return moves.items[j].family == "peak" and bool(moves.point[j, at] < 0)


def _bottom(moves: Moves, j: int) -> str:
    """The metric that a ratio is divided by."""
    return moves.items[j].label.partition(" / ")[2]


def describe(moves: Moves, j: int, row: int, z: float) -> str:
    """One sentence on what feature `j` did at `row`, against the steps before it."""
    at = row - moves.start
    item, values = moves.items[j], moves.values[j]
    before = values[max(at - LEVEL, 0) : at]
    moved = float(values[at] - np.median(before)) if len(before) else 0.0
    raw = float(moves.raw[moves.columns.index(item.metric), at])
    now = f" ({raw:.4g})" if item.label == item.metric else ""
    return (
        f"{item.label}{now} {_change(item, moved)} the median of the {len(before)} steps before, "
        f"at step {int(moves.steps[at])}: {abs(z):.1f} robust deviations ({item.family})."
    )


def _change(item: Feature, moved: float) -> str:
    """What a move of the feature means in the units that people know."""
    if item.family == "sign":
        return f"had odds {np.exp(min(moved, 690.0)):.3g} times"
    in_logs = item.family != "parameter" and not item.label.startswith(("mean bin", "width"))
    if in_logs:
        return f"was {np.exp(min(moved, 690.0)):.3g} times"
    return f"was {moved:+.3g} against"
