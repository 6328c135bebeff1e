"""Small charts of single metrics round a finding, each against its healthy band."""

from __future__ import annotations

import numpy as np

from flashback_core.bounds import bounded
from flashback_core.report.metric_words import metric_label
from flashback_core.report.model import Finding, MetricScore
from flashback_core.report.spec import Band, Line, Panel, Rule, Span
from flashback_core.report.surprise import CAP, Scale, lost_rows, row_surprise, trailing
from flashback_core.report.text import number
from flashback_core.report.window import Window

__all__ = ["BAND_DEVIATIONS", "MOVED", "moved_first", "movers", "n_named"]

BAND_DEVIATIONS = 4.0
"""Half width of the healthy band, in robust deviations."""
MOVED = 8.0
"""Robust deviations from which a metric that no finding names is shown."""
FEW = 6
"""Panels up to which metrics are shown that the finding does not name."""


def movers(window: Window, finding: Finding, limit: int = 12) -> tuple[MetricScore, ...]:
    """The metrics that moved first: those that the finding names, else those furthest off.

    Args:
        window: Rows round the finding.
        finding: What was found.
        limit: How many at most.
    """
    return finding.top_metrics[:limit] or far_off(window, limit)


def far_off(
    window: Window, limit: int, besides: frozenset[str] = frozenset()
) -> tuple[MetricScore, ...]:
    """Metrics that lay `MOVED` or more deviations off from the finding on, the first one first.

    Args:
        window: Rows round the finding.
        limit: How many at most.
        besides: Metrics to leave out.
    """
    found = []
    for name in window.table.names:
        if name in besides:
            continue
        counts = name.startswith("hist_")
        z = row_surprise(window.table.column(name), window.row, counts=counts)[window.row :]
        far = np.flatnonzero(np.abs(np.nan_to_num(z)) >= MOVED)
        if len(far):
            step = int(window.table.steps[window.row + far[0]])
            score = float(np.abs(z[far[0]]))
            found.append(MetricScore(metric=name, score=score, step=step))
    found.sort(key=lambda m: (m.step, -m.score))
    return tuple(found[:limit])


def moved_first(window: Window, finding: Finding, limit: int = 8) -> tuple[Panel, ...]:
    """One panel for each metric that moved, in the order in which they moved.

    Where the finding names few, those follow that lay far off next, see `n_named`.
    """
    named = {m.metric: m.step for m in reversed(movers(window, finding, limit=64))}
    known = [n for n in reversed(named) if n in window.table.names][:limit]
    if len(known) < FEW:
        sizes = frozenset(n for n in window.table.names if n.startswith(("hist_", "step_wall")))
        for m in far_off(window, FEW - len(known), sizes | set(known)):
            known.append(m.metric)
            named[m.metric] = m.step
    return tuple(metric_panel(window, finding, name, named[name]) for name in known)


def n_named(panels: tuple[Panel, ...], finding: Finding) -> int:
    """How many of the panels show what the finding names."""
    named = {m.metric for m in finding.top_metrics}
    return sum(panel.name in named for panel in panels) if named else len(panels)


def metric_panel(window: Window, finding: Finding, name: str, moved: int) -> Panel:
    """One metric round `finding`, with the band of its values before.

    Args:
        window: Rows round the finding.
        finding: What was found.
        name: The metric.
        moved: Step at which it moved.
    """
    values = np.asarray(window.table.column(name))
    part = slice(window.shown, None)
    logged = (np.isfinite(values) | lost_rows(values))[part]
    steps, shown = window.table.steps[part][logged], values[part][logged].astype(np.float64)
    return Panel(
        title=metric_label(name),
        name=name,
        domain=window.domain,
        lines=(Line(steps=steps, values=shown, label=metric_label(name)),),
        band=healthy_band(window, values),
        rules=(Rule(step=finding.step, label=f"step {finding.step:,}", role=_role(finding)),),
        spans=_interval(finding),
        log=_wide(shown),
        note=_note(window, values, moved),
        height=84,
    )


def _role(finding: Finding) -> str:
    return finding.severity if finding.severity in {"bad", "change"} else "quiet"


def _interval(finding: Finding) -> tuple[Span, ...]:
    first, last = finding.interval
    if first == last:
        return ()
    return (Span(first=first, last=last, label="credible interval", role=_role(finding)),)


def healthy_band(window: Window, values: np.ndarray) -> Band | None:
    """Where the steps before say that values should lie; None without enough of them."""
    scale = Scale.of(values)
    centre, spread = trailing(values, frozen_from=window.row)
    low = scale.back(centre - BAND_DEVIATIONS * spread)[window.shown :]
    high = scale.back(centre + BAND_DEVIATIONS * spread)[window.shown :]
    if not np.isfinite(low).any():
        return None
    steps = window.table.steps[window.shown :]
    return Band(steps=steps, low=low, high=high, label="range of the steps before")


def _wide(values: np.ndarray) -> bool:
    """Whether values from zero on span so much that only a logarithmic scale shows them."""
    finite = bounded(values[np.isfinite(values)])
    positive = finite[finite > 0]
    if not len(positive) or finite.min() < 0:
        return False
    return bool(positive.max() > 30 * np.median(positive) or positive.max() > 300 * positive.min())


def _note(window: Window, values: np.ndarray, moved: int) -> str:
    """The change in words, so that it can be read without the picture."""
    before = bounded(values[max(0, window.row - 32) : window.row])
    before = before[np.isfinite(before)]
    usual = f"Usually {number(float(np.median(before)))}; " if len(before) else ""
    row = window.row_of(moved)
    if row is None:
        return f"{usual}moved at step {moved:,}, beyond these steps"
    far = _far(float(row_surprise(values, window.row)[row])) if usual else ""
    return f"{usual}{number(float(values[row]))} at step {int(window.table.steps[row]):,}{far}"


def _far(z: float) -> str:
    if not np.isfinite(z) or abs(z) < BAND_DEVIATIONS:
        return ""
    way = "above" if z > 0 else "below"
    size = f"{CAP:.0f} or more" if abs(z) >= CAP else f"{abs(z):.0f}"
    return f" ({size} deviations {way})"
