"""Charts as figures of the page: shapes stretched to any width, with real text round them."""

from __future__ import annotations

import html
import json
from typing import Any

import numpy as np
import numpy.typing as npt

from flashback_core.report.markup import esc
from flashback_core.report.palette import legend, level_name
from flashback_core.report.scales import step_ticks, value_scale
from flashback_core.report.spec import Chart, HeatMap, Lanes, Panel, Rule, Stack
from flashback_core.report.svg import shapes, view_box

__all__ = ["figure"]

_LABELS_DRAWN = 6
_LABEL_ROOM = 0.021
"""Share of a plot's width that one character takes on a phone."""


def figure(chart: Chart, *, legend: bool = True) -> str:
    """`chart` as a figure that reads without the picture and answers to mouse and keys.

    Args:
        chart: What to draw.
        legend: Whether the colours of a heat map are explained under it.
    """
    if isinstance(chart, Stack):
        return _stack(chart)
    under = _legend(chart) if legend else ""
    return f'<figure class="chart {_kind(chart)}">{_caption(chart)}{_frame(chart)}{under}</figure>'


def _stack(stack: Stack) -> str:
    jumps = "".join(
        f'<button type="button" data-first="{a}" data-last="{b}">{esc(words)}</button>'
        for words, a, b in stack.jumps
    )
    parts = []
    for i, chart in enumerate(stack.charts):
        last = i == len(stack.charts) - 1
        frame = _frame(chart, ticks=last, labels=i == 0)
        parts.append(f'<div class="part {_kind(chart)}"><h3>{esc(chart.title)}</h3>{frame}</div>')
    return (
        f'<figure class="chart stack" data-zoom><div class="tools" role="group" aria-label="Zoom">'
        f'<button type="button" class="all" aria-pressed="true">Whole run</button>{jumps}'
        f'<span class="note js">{esc(stack.note, 300)}</span></div>{"".join(parts)}</figure>'
    )


def _caption(chart: Panel | HeatMap | Lanes) -> str:
    note = f'<span class="note">{esc(chart.note, 300)}</span>' if chart.note else ""
    return f"<figcaption><strong>{esc(chart.title)}</strong>{note}</figcaption>"


def _kind(chart: Chart) -> str:
    return type(chart).__name__.lower()


def _frame(chart: Panel | HeatMap | Lanes, *, ticks: bool = True, labels: bool = True) -> str:
    first, last = chart.domain
    words = esc(f"{chart.title}. {chart.note} Left and right arrow keys read it step by step.", 400)
    over = _rule_labels(chart) if labels else ""
    below = f'<div class="xs" aria-hidden="true">{_step_labels(chart)}</div>' if ticks else ""
    return (
        f'<div class="frame" style="--h:{_height(chart)}px">'
        f'<div class="ys">{_side(chart)}</div>'
        f'<div class="plot" tabindex="0" role="group" aria-roledescription="chart" '
        f'aria-label="{words}" data-first="{first}" '
        f'data-last="{last}" data-chart="{_data(chart)}"><svg {view_box()} aria-hidden="true">'
        f"{shapes(chart)}</svg>{over}{_odd_label(chart)}</div>{below}</div>"
    )


def _height(chart: Panel | HeatMap | Lanes) -> int:
    if isinstance(chart, Panel):
        return chart.height
    if isinstance(chart, HeatMap):
        return len(chart.rows) * chart.row_height
    return len(chart.lanes) * 20


def _side(chart: Panel | HeatMap | Lanes) -> str:
    """Labels on the left: values of a panel, names of rows or lanes."""
    if isinstance(chart, Panel):
        marks = value_scale(chart).ticks()
        return "".join(f'<span style="top:{top:.1f}%">{esc(w)}</span>' for top, w in marks)
    names = chart.rows if isinstance(chart, HeatMap) else tuple(label for label, _ in chart.lanes)
    return "".join(
        f'<span class="row" title="{esc(name, 200)}" '
        f'style="top:{100 * (i + 0.5) / len(names):.2f}%">'
        f"{esc(name, 40)}</span>"
        for i, name in enumerate(names)
    )


def _step_labels(chart: Panel | HeatMap | Lanes) -> str:
    marks = step_ticks(chart.domain)
    return "".join(f'<span style="left:{left:.2f}%">{esc(w)}</span>' for left, w in marks)


def _rule_labels(chart: Panel | HeatMap | Lanes) -> str:
    """Words on the first rules; more would lie on top of each other."""
    if isinstance(chart, Lanes):
        return ""
    first, last = chart.domain
    shown: list[Rule] = []
    for rule in sorted(chart.rules, key=lambda r: r.role != "bad"):
        gap = _LABEL_ROOM * len(rule.label) * (last - first)
        far = all(abs(rule.step - r.step) > gap for r in shown)
        if far and len(shown) < _LABELS_DRAWN and first <= rule.step <= last:
            shown.append(rule)
    return "".join(
        f'<span class="at {esc(r.role)}{_flip(r, chart.domain)}" data-step="{r.step}" '
        f'style="left:{100 * (r.step - first) / (last - first):.2f}%">{esc(r.label, 40)}</span>'
        for r in shown
    )


def _odd_label(chart: Panel | HeatMap | Lanes) -> str:
    """A word where a line first stops being finite."""
    if not isinstance(chart, Panel):
        return ""
    first, last = chart.domain
    for line in chart.lines:
        odd = np.flatnonzero(~np.isfinite(line.values))
        if len(odd):
            rule = Rule(step=int(line.steps[odd[0]]), label=_odd(float(line.values[odd[0]])))
            left = 100 * (rule.step - first) / (last - first)
            return (
                f'<span class="at bad odd{_flip(rule, chart.domain)}" data-step="{rule.step}" '
                f'style="left:{left:.2f}%">{rule.label}</span>'
            )
    return ""


def _flip(rule: Rule, domain: tuple[float, float]) -> str:
    first, last = domain
    return " left" if rule.step - first > 0.7 * (last - first) else ""


def _legend(chart: Chart) -> str:
    if not isinstance(chart, HeatMap):
        return ""
    steps = "".join(
        f'<li><i class="{level_name(chart.scale, level)}"></i>{esc(words)}</li>'
        for level, words in legend(chart.scale)
    )
    blank = "<li>no colour: nothing to compare with</li>" if np.isnan(chart.values).any() else ""
    return (
        f'<ul class="legend" aria-label="Colours: {esc(chart.unit)}">{steps}'
        f"<li>({esc(chart.unit)})</li>{blank}</ul>"
    )


def _data(chart: Panel | HeatMap | Lanes) -> str:
    """The numbers that the read-out says, as JSON in an attribute."""
    text = json.dumps(_numbers(chart), separators=(",", ":"), ensure_ascii=True)
    return html.escape(text, quote=True)


def _numbers(chart: Panel | HeatMap | Lanes) -> dict[str, Any]:
    if isinstance(chart, Panel):
        lines = [[ln.label, _deltas(ln.steps), _short(ln.values), ln.role] for ln in chart.lines]
        return {"kind": "lines", "log": chart.log, "lines": lines}
    if isinstance(chart, HeatMap):
        return _heat_numbers(chart)
    lanes = [
        [label, [[m.step, m.last or m.step, m.label] for m in marks]]
        for label, marks in chart.lanes
    ]
    return {"kind": "lanes", "lanes": lanes}


def _heat_numbers(chart: HeatMap) -> dict[str, Any]:
    digits = 0 if chart.scale == "signed" else 4
    cells = [[_cell(v, digits) for v in row] for row in chart.values]
    edges = [float(e) for e in chart.edges]
    out: dict[str, Any] = {
        "kind": "heat",
        "scale": chart.scale,
        "edges": edges,
        "rows": chart.rows,
        "cells": cells,
    }
    if chart.leads is not None:
        used = np.unique(chart.leads[chart.leads >= 0])
        again = {int(old): new for new, old in enumerate(used)}
        out["words"] = [chart.words[i] for i in used]
        out["leads"] = [[again.get(int(i), -1) for i in row] for row in chart.leads]
    return out


def _cell(value: float, digits: int) -> float | int | None:
    if not np.isfinite(value):
        return None
    return round(float(value), digits) if digits else round(float(value))


def _deltas(steps: npt.NDArray[np.int64]) -> list[int]:
    return [int(steps[0]), *np.diff(steps).tolist()] if len(steps) else []


def _short(values: npt.NDArray[np.float64]) -> list[float | str]:
    """Five significant digits; NaN and infinity as words, since JSON has none."""
    return [float(f"{v:.5g}") if np.isfinite(v) else _odd(v) for v in values.tolist()]


def _odd(value: float) -> str:
    return "NaN" if np.isnan(value) else ("Inf" if value > 0 else "−Inf")
