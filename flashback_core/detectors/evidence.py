"""Evidence: what moved, in which order, in sentences with numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from flashback_core.detectors.features import Feature
from flashback_core.detectors.score_stream import LEVEL
from flashback_core.report.model import MetricScore

__all__ = ["KINDS", "Moves", "describe", "moved_first", "worth_telling"]

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
    seen: dict[str, MetricScore] = {}
    for at, score, j in _ranked(moves, onset):
        metric, step = moves.items[j].metric, int(moves.steps[onset - moves.start + at])
        seen.setdefault(metric, MetricScore(metric=metric, score=round(score, 2), step=step))
    return tuple(seen.values())[:TOP]


def worth_telling(moves: Moves, onset: int, members: Sequence[int], n: int) -> list[int]:
    """The features to describe: of `members`, and of what else moved at the onset.

    A member is passed over where it moved only because the norm that it is divided by did: the
    norm itself is told then.

    Args:
        moves: The rows around the alarm.
        onset: Row of the onset.
        members: Features behind the alarm, the strongest first.
        n: How many.
    """
    at_once = [j for at, _, j in _ranked(moves, onset) if at == 0]
    quiet = np.abs(moves.at(onset)) < MOVED
    told = [j for j in members if j in at_once or quiet[j]]
    told += [j for j in at_once if j not in told]
    return (told or list(members))[:n]


def _ranked(moves: Moves, onset: int) -> list[tuple[int, float, int]]:
    """Rows after the onset, score and number of each feature that moved itself, in order."""
    begin = onset - moves.start
    z = np.abs(moves.point[:, begin : begin + SPAN])
    itself = _moved_itself(moves, z)
    ranked = []
    for j, item in enumerate(moves.items):
        if _is_share(item):
            z[j, : itself.get(item.metric, SPAN)] = 0.0  # till then it moved because the whole did
        if not (z[j] >= MOVED).any():
            continue
        at = int(np.argmax(z[j] >= MOVED))
        if moves.point[j, begin + at] < 0 and itself.get(_bottom(item), SPAN) <= at:
            continue  # what it is held against grew
        ranked.append((at, float(z[j, at : at + 3].max()), j))
    return sorted(ranked, key=lambda found: (found[0], -found[1], moves.items[found[2]].metric))


def _moved_itself(moves: Moves, z: Floats) -> dict[str, int]:
    """The first row at which each metric moved by more than its share of a whole."""
    found: dict[str, int] = {}
    for j in np.flatnonzero((z >= MOVED).any(axis=1)).tolist():
        if not _is_share(moves.items[j]):
            metric, at = moves.items[j].metric, int(np.argmax(z[j] >= MOVED))
            found[metric] = min(at, found.get(metric, at))
    return found


def _is_share(item: Feature) -> bool:
    return item.family == "composition"


def _bottom(item: Feature) -> str:
    """The norm that a largest entry or the mean of a histogram is held against; "" for others."""
    if item.family not in ("peak", "histogram"):
        return ""
    mark = " / " if item.family == "peak" else " less log4 "
    return item.label.partition(mark)[2].rstrip(",")


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
