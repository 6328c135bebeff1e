"""A picture of the whole run, for places that show no page: loss and norms, the first bad step."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np

from flashback_core.report.downsample import min_max_rows
from flashback_core.report.model import DetectionReport
from flashback_core.report.palette import LIGHT
from flashback_core.table import StepTable

__all__ = ["timeline_png"]

_SHOWN = ("loss", "grad_norm", "update_norm")
_MAX_POINTS = 1000
_WIDTH, _HEIGHT = 720, 110


def timeline_png(report: DetectionReport, table: StepTable | None = None) -> bytes | None:
    """Loss and norms over the whole run, with the first bad step marked.

    Args:
        report: What was found.
        table: The run; the report's own where None.

    Returns:
        A PNG picture; None without the extra ``report``, or without anything to draw.
    """
    table = report.table if table is None else table
    try:
        import vl_convert
    except ModuleNotFoundError:
        return None
    names = [name for name in _SHOWN if table is not None and name in table.names]
    if table is None or not names or not len(table):
        return None
    spec = {
        "title": _title(report),
        "vconcat": [_panel(table, name, report.first_bad_step) for name in names],
        "config": {"font": "sans-serif", "axis": {"grid": False}, "view": {"stroke": "#d0d4da"}},
    }
    picture: bytes = vl_convert.vegalite_to_png(json.dumps(spec), scale=2)
    return picture


def _title(report: DetectionReport) -> str:
    if report.first_bad_step is None:
        return report.status.replace("_", " ")
    return f"First bad step {report.first_bad_step} ({report.kind})"


def _panel(table: StepTable, name: str, bad: int | None) -> dict[str, Any]:
    values = np.asarray(table.column(name), np.float64)
    rows = min_max_rows(values, _MAX_POINTS)
    points = [
        {"step": int(step), "value": float(value) if math.isfinite(value) else None}
        for step, value in zip(table.steps[rows], values[rows], strict=True)
    ]
    positive = bool(np.all(values[np.isfinite(values)] > 0))
    scale = {"type": "log" if positive else "linear", "zero": False, "nice": False}
    line = {
        "data": {"values": points},
        "mark": {"type": "line", "color": LIGHT["series-1"], "strokeWidth": 1.2},
        "encoding": {
            "x": {"field": "step", "type": "quantitative", "scale": {"nice": False}},
            "y": {"field": "value", "type": "quantitative", "title": name, "scale": scale},
        },
    }
    layers = [line] if bad is None else [line, _rule(bad)]
    return {"width": _WIDTH, "height": _HEIGHT, "layer": layers}


def _rule(step: int) -> dict[str, Any]:
    return {
        "data": {"values": [{"step": step}]},
        "mark": {"type": "rule", "color": LIGHT["bad"], "strokeWidth": 2},
        "encoding": {"x": {"field": "step", "type": "quantitative"}},
    }
