"""Pictures of a report for places that show no page, and the same in numbers for their charts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from flashback_core.errors import MissingExtraError
from flashback_core.report.chart_multiples import movers
from flashback_core.report.charts import lead, moved_first, timeline, window_of
from flashback_core.report.model import DetectionReport
from flashback_core.report.spec import Stack
from flashback_core.report.surprise import row_surprise
from flashback_core.report.vega import to_png
from flashback_core.report.verdict import verdict

__all__ = ["MovedLines", "moved_lines", "pictures"]

_PANELS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class MovedLines:
    """What moved first as lines on one scale, round the finding.

    Attributes:
        title: Plain words.
        steps: Step of each point.
        lines: Robust deviations by metric, in the order in which they moved; None where there is
            none.
    """

    title: str
    steps: tuple[int, ...]
    lines: dict[str, tuple[float | None, ...]]


def pictures(report: DetectionReport) -> dict[str, bytes]:
    """PNG pictures by name: ``timeline`` and, where something was found, ``moved_first``.

    Without the extra ``report``, or without the run, there are none.
    """
    found = {}
    try:
        for name, stack in _stacks(report):
            found[name] = to_png(stack)
    except MissingExtraError:
        return {}
    return found


def _stacks(report: DetectionReport) -> Iterator[tuple[str, Stack]]:
    if report.table is None or len(report.table) < 2:
        return
    whole = timeline(report.table, report)
    if whole is not None:
        yield "timeline", replace(whole, title=verdict(report).headline)
    panels = moved_first(report.table, report)[:_PANELS]
    if panels:
        finding = lead(report)
        where = f" round step {finding.step:,}" if finding else ""
        title = f"What moved first{where}, against the range of the steps before"
        yield "moved_first", Stack(title=title, name="moved", charts=panels)


def moved_lines(report: DetectionReport) -> MovedLines | None:
    """The metrics that moved first on one scale; None without a finding or without the run."""
    near, finding = window_of(report), lead(report)
    if near is None or finding is None:
        return None
    named = dict.fromkeys(m.metric for m in movers(near, finding, limit=2 * _PANELS))
    known = [n for n in named if n in near.table.names][:_PANELS]
    lines = {}
    for name in known:
        counts = name.startswith("hist_")
        z = row_surprise(near.table.column(name), near.row, counts=counts)[near.shown :]
        if np.isfinite(z).any():
            lines[name] = tuple(round(float(v), 3) if np.isfinite(v) else None for v in z)
    if not lines:
        return None
    return MovedLines(
        title=f"What moved first, robust deviations round step {finding.step:,}",
        steps=tuple(int(s) for s in near.table.steps[near.shown :]),
        lines=lines,
    )
