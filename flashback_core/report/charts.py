"""The charts of a report: each a function of (table, report) that gives a plain specification.

The page, images for trackers and notebooks all draw these; see `spec` for the grammar, `svg` for
drawing without any package and `vega` for Vega-Lite.
"""

from __future__ import annotations

from collections.abc import Mapping

from flashback_core.report import chart_maps, chart_multiples, chart_timeline
from flashback_core.report.model import DetectionReport, Finding
from flashback_core.report.series import one_optimizer
from flashback_core.report.spec import Chart, HeatMap, Panel, Stack
from flashback_core.report.window import Window, around
from flashback_core.table import StepTable

__all__ = [
    "all_charts",
    "histogram",
    "lead",
    "moved_first",
    "surprise",
    "surprise_run",
    "timeline",
    "window_of",
]


def lead(report: DetectionReport) -> Finding | None:
    """The finding that a page is about: the first bad one, else the first change."""
    return report.bad or (report.changes[0] if report.changes else None)


def _window(table: StepTable, report: DetectionReport) -> tuple[Window, Finding] | None:
    finding = lead(report)
    window = around(one_optimizer(table, finding), finding) if finding else None
    return (window, finding) if window and finding else None


def window_of(report: DetectionReport) -> Window | None:
    """The rows round the finding that a page is about; None without one or without its run."""
    near = _window(report.table, report) if report.table is not None else None
    return near[0] if near else None


def timeline(table: StepTable, report: DetectionReport) -> Stack | None:
    """The whole run: loss, learning rate, norms, findings and events."""
    table = one_optimizer(table, lead(report))
    whole = chart_maps.surprise_map(table, report)
    return chart_timeline.timeline(table, report, chart_maps.strip_of(whole) if whole else None)


def moved_first(table: StepTable, report: DetectionReport) -> tuple[Panel, ...]:
    """The metrics that moved first, each against its healthy band."""
    near = _window(table, report)
    return chart_multiples.moved_first(*near) if near else ()


def surprise(table: StepTable, report: DetectionReport) -> HeatMap | None:
    """Surprise by part of the model, step by step round the finding; None without one."""
    near = _window(table, report)
    return chart_maps.surprise_near(*near) if near else None


def surprise_run(table: StepTable, report: DetectionReport) -> HeatMap | None:
    """Surprise by part of the model over the whole run."""
    return chart_maps.surprise_map(one_optimizer(table, lead(report)), report)


def histogram(table: StepTable, report: DetectionReport, kind: str) -> HeatMap | None:
    """Histograms of ``grad`` or ``update`` sizes round the finding, else over the whole run."""
    near = _window(table, report)
    if near:
        return chart_maps.histogram_near(*near, kind)
    return chart_maps.histogram_map(one_optimizer(table, lead(report)), report, kind)


def all_charts(table: StepTable, report: DetectionReport) -> Mapping[str, Chart]:
    """Every chart that this run allows, by a name that fits a file."""
    found: dict[str, Chart | None] = {
        "timeline": timeline(table, report),
        "surprise": surprise(table, report) or surprise_run(table, report),
        "gradients": histogram(table, report, "grad"),
        "updates": histogram(table, report, "update"),
    }
    for i, panel in enumerate(moved_first(table, report)):
        found[f"moved-{i + 1}"] = panel
    return {name: chart for name, chart in found.items() if chart is not None}
