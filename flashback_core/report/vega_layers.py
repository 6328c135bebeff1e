"""The layers of Vega-Lite that panels, heat maps and lanes become."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np

from flashback_core.report.palette import (
    SHARE_STEPS,
    SIGNED_STEPS,
    legend,
    level_name,
    level_of,
)
from flashback_core.report.scales import ValueScale, value_scale
from flashback_core.report.spec import HeatMap, Lanes, Line, Panel, Rule
from flashback_core.report.text import clean

__all__ = ["heat_layers", "lanes_layers", "panel_layers"]


def _paint(colours: Mapping[str, str], role: str) -> str:
    return colours.get(role, colours["quiet"])


def _x(domain: tuple[float, float], field: str = "step") -> dict[str, Any]:
    scale = {"domain": list(domain), "nice": False, "zero": False}
    axis = {"title": "step", "format": ",d", "tickCount": 6, "grid": False}
    return {"field": field, "type": "quantitative", "scale": scale, "axis": axis}


def _y(scale: ValueScale, field: str = "value") -> dict[str, Any]:
    ends = [10**scale.low, 10**scale.high] if scale.log else [scale.low, scale.high]
    kind = {"type": "log"} if scale.log else {"zero": False}
    axis = {"title": None, "tickCount": 4, "grid": False}
    return {
        "field": field,
        "type": "quantitative",
        "scale": {**kind, "domain": ends, "nice": False, "clamp": True},
        "axis": axis,
    }


def panel_layers(panel: Panel, colours: Mapping[str, str]) -> dict[str, Any]:
    """The layers of a panel: band, spans, lines, marks of what is no number, and rules."""
    scale = value_scale(panel)
    layers = [_band(panel, scale, colours)] if panel.band is not None else []
    layers += [_spans(panel, colours)] if panel.spans else []
    layers += [_line(line, panel, scale, colours) for line in panel.lines]
    layers += [_odd(panel, colours)] if any(_odd_steps(ln) for ln in panel.lines) else []
    layers += _rules(panel.rules, panel.domain, colours)
    return {"layer": layers}


def _band(panel: Panel, scale: ValueScale, colours: Mapping[str, str]) -> dict[str, Any]:
    band = panel.band
    assert band is not None
    rows = [
        {"step": int(s), "low": float(low), "high": float(high)}
        for s, low, high in zip(band.steps, band.low, band.high, strict=True)
        if np.isfinite(low) and np.isfinite(high)
    ]
    return {
        "data": {"values": rows},
        "mark": {"type": "area", "color": colours["band"], "opacity": 1, "clip": True},
        "encoding": {"x": _x(panel.domain), "y": _y(scale, "low"), "y2": {"field": "high"}},
    }


def _spans(panel: Panel, colours: Mapping[str, str]) -> dict[str, Any]:
    rows = [
        {"step": s.first - 0.5, "end": s.last + 0.5, "color": _paint(colours, s.role)}
        for s in panel.spans
    ]
    return {
        "data": {"values": rows},
        "mark": {"type": "rect", "opacity": 0.16, "clip": True},
        "encoding": {
            "x": _x(panel.domain),
            "x2": {"field": "end"},
            "color": {"field": "color", "type": "nominal", "scale": None},
        },
    }


def _line(
    line: Line, panel: Panel, scale: ValueScale, colours: Mapping[str, str]
) -> dict[str, Any]:
    floor = 10**scale.low if scale.log else None
    rows = [
        {"step": int(s), "value": _finite(float(v), floor)}
        for s, v in zip(line.steps, line.values, strict=True)
    ]
    mark = {"type": "line", "color": _paint(colours, line.role), "strokeWidth": 1.4, "clip": True}
    if len(rows) <= 160:
        mark["point"] = {"color": _paint(colours, line.role), "size": 12}
    return {
        "data": {"values": rows},
        "mark": mark,
        "encoding": {"x": _x(panel.domain), "y": _y(scale)},
    }


def _finite(value: float, floor: float | None) -> float | None:
    """A value that a scale can place: zeros of a logarithmic one lie at its floor."""
    if not np.isfinite(value):
        return None
    return max(value, floor) if floor is not None else value


def _odd_steps(line: Line) -> list[int]:
    return [int(s) for s in line.steps[~np.isfinite(line.values)]]


def _odd(panel: Panel, colours: Mapping[str, str]) -> dict[str, Any]:
    """Marks at the top where values are NaN or infinite."""
    steps = sorted({s for line in panel.lines for s in _odd_steps(line)})
    return {
        "data": {"values": [{"step": s} for s in steps]},
        "mark": {"type": "tick", "color": colours["bad"], "thickness": 2, "size": 10},
        "encoding": {"x": _x(panel.domain), "y": {"value": 5}},
    }


def _rules(
    rules: tuple[Rule, ...], domain: tuple[float, float], colours: Mapping[str, str]
) -> list[dict[str, Any]]:
    rows = [
        {"step": r.step, "label": clean(r.label, 40), "color": _paint(colours, r.role)}
        for r in rules
        if domain[0] <= r.step <= domain[1]
    ]
    if not rows:
        return []
    colour = {"field": "color", "type": "nominal", "scale": None}
    text = {"type": "text", "align": "center", "baseline": "bottom", "fontSize": 10}
    return [
        {
            "data": {"values": rows},
            "mark": {"type": "rule", "strokeDash": [4, 3]},
            "encoding": {"x": _x(domain), "color": colour},
        },
        {
            "data": {"values": rows},
            "mark": text,
            "encoding": {
                "x": _x(domain),
                "y": {"value": -3},
                "text": {"field": "label"},
                "color": colour,
            },
        },
    ]


def heat_layers(chart: HeatMap, colours: Mapping[str, str], explained: bool) -> dict[str, Any]:
    """The layers of a heat map: its cells and rules."""
    steps = SIGNED_STEPS if chart.scale == "signed" else SHARE_STEPS
    names = ", ".join(f"{i}: {_quoted(name)}" for i, name in enumerate(chart.rows))
    axis = {"title": None, "labelExpr": f"({{{names}}})[datum.value]", "labelLimit": 160}
    said = ", ".join(f"'{k}': {_quoted(v)}" for k, v in legend(chart.scale))
    key = {"title": clean(chart.unit), "labelExpr": f"({{{said}}})[datum.value] || ''"}
    paints = [colours[level_name(chart.scale, k)] for k in steps]
    cells = {
        "data": {"values": _cells(chart)},
        "mark": {"type": "rect"},
        "encoding": {
            "x": _x(chart.domain),
            "x2": {"field": "end"},
            "y": {"field": "row", "type": "ordinal", "axis": axis},
            "color": {
                "field": "level",
                "type": "ordinal",
                "scale": {"domain": list(steps), "range": paints},
                "legend": key if explained else None,
            },
        },
    }
    return {"layer": [cells, *_rules(chart.rules, chart.domain, colours)], **_own_colours()}


def _cells(chart: HeatMap) -> list[dict[str, float]]:
    """Stretches of one colour in a row."""
    levels = level_of(chart.values, chart.scale)
    rows: list[dict[str, float]] = []
    edges = chart.edges
    for i, row in enumerate(levels):
        cuts = [0, *(np.flatnonzero(np.diff(row)) + 1).tolist(), len(row)]
        rows += [
            {"step": float(edges[a]), "end": float(edges[b]), "row": i, "level": int(row[a])}
            for a, b in pairwise(cuts)
            if np.isfinite(chart.values[i, a])
        ]
    return rows


def _own_colours() -> dict[str, Any]:
    return {"resolve": {"scale": {"color": "independent"}}}


def _quoted(text: str) -> str:
    """`text` as a string of Vega's expression language that nothing in it can leave."""
    safe = "".join(c if c.isalnum() or c in " _-.,%≥/" else " " for c in clean(text, 40))
    return f"'{safe}'"


def lanes_layers(chart: Lanes, colours: Mapping[str, str]) -> dict[str, Any]:
    """The layers of lanes of events: ticks, and bars for stretches."""
    names = [clean(label, 24) for label, _ in chart.lanes]
    rows: list[dict[str, Any]] = [
        {"step": m.step, "end": m.last or m.step, "lane": name, "color": _paint(colours, m.role)}
        for name, (_, marks) in zip(names, chart.lanes, strict=True)
        for m in marks
    ]
    shared = {
        "y": {"field": "lane", "type": "nominal", "sort": names, "axis": {"title": None}},
        "color": {"field": "color", "type": "nominal", "scale": None},
    }
    tick = {"type": "tick", "thickness": 2.4, "size": 12, "orient": "vertical"}
    layers = [
        {"data": {"values": rows}, "mark": tick, "encoding": {"x": _x(chart.domain), **shared}}
    ]
    long = [r for r in rows if r["end"] > r["step"]]
    if long:
        x = {"x": _x(chart.domain), "x2": {"field": "end"}}
        bar = {"type": "rect", "opacity": 0.55, "height": {"band": 0.6}}
        layers.append({"data": {"values": long}, "mark": bar, "encoding": {**x, **shared}})
    return {"layer": layers}
