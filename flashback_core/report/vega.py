"""Chart specifications as Vega-Lite, and as PNG or SVG pictures (extra ``report``).

`to_vega` is plain data and needs no package; a tracker that takes Vega-Lite can draw it. Pictures
are made by vl-convert, without a browser and without network.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from flashback_core.extras import extra
from flashback_core.report.palette import DARK, LIGHT
from flashback_core.report.spec import Chart, HeatMap, Lanes, Panel, Stack
from flashback_core.report.text import clean
from flashback_core.report.vega_layers import heat_layers, lanes_layers, panel_layers

__all__ = ["to_png", "to_svg", "to_vega"]

SCHEMA = "https://vega.github.io/schema/vega-lite/v5.json"
_VERSION = "5.20"
_PAPER = {
    "light": ("#ffffff", "#f3f4f6", "#15181d", "#565e6a"),
    "dark": ("#191d24", "#1d222a", "#eceff3", "#a5aebb"),
}
_WIDTH = 640


def to_vega(chart: Chart, *, theme: str = "light") -> dict[str, Any]:
    """`chart` as a Vega-Lite specification with its data inside, as plain JSON values.

    Args:
        chart: What to draw.
        theme: ``light`` or ``dark``.
    """
    colours = DARK if theme == "dark" else LIGHT
    paper, panel, ink, soft = _PAPER["dark" if theme == "dark" else "light"]
    body = _stack(chart, colours) if isinstance(chart, Stack) else _view(chart, colours)
    return {
        "$schema": SCHEMA,
        "background": paper,
        "config": {
            "view": {"stroke": None, "fill": panel},
            "axis": {
                "labelColor": soft,
                "titleColor": soft,
                "gridColor": soft,
                "gridOpacity": 0.18,
            },
            "title": {
                "color": ink,
                "subtitleColor": soft,
                "anchor": "start",
                "frame": "group",
                "fontSize": 13,
            },
            "legend": {"labelColor": soft, "titleColor": soft},
        },
        **body,
    }


def to_png(chart: Chart, *, theme: str = "light", scale: float = 2.0) -> bytes:
    """`chart` as a PNG picture.

    Raises:
        MissingExtraError: If vl-convert is not installed (extra ``report``).
    """
    with extra("report", package="vl_convert"):
        import vl_convert
    spec = to_vega(chart, theme=theme)
    return bytes(vl_convert.vegalite_to_png(spec, vl_version=_VERSION, scale=scale))


def to_svg(chart: Chart, *, theme: str = "light") -> str:
    """`chart` as an SVG picture of its own.

    Raises:
        MissingExtraError: If vl-convert is not installed (extra ``report``).
    """
    with extra("report", package="vl_convert"):
        import vl_convert
    return str(vl_convert.vegalite_to_svg(to_vega(chart, theme=theme), vl_version=_VERSION))


def _stack(stack: Stack, colours: Mapping[str, str]) -> dict[str, Any]:
    """Charts over each other; steps are written under the last, words on rules over the first."""
    views = []
    for i, chart in enumerate(stack.charts):
        if i and not isinstance(chart, Lanes):
            chart = replace(chart, rules=tuple(replace(r, label="") for r in chart.rules))
        view = _view(chart, colours, legend=False)
        view["title"]["offset"] = 4 if i else 16
        if i < len(stack.charts) - 1:
            _hide_steps(view)
        views.append(view)
    title = {"text": clean(stack.title, 120), "fontSize": 16, "offset": 12}
    return {"title": title, "vconcat": views, "spacing": 12}


def _hide_steps(view: dict[str, Any]) -> None:
    hidden = {"labels": False, "ticks": False, "title": None, "grid": False}
    for part in view["layer"]:
        part["encoding"]["x"]["axis"] = hidden


def _view(
    chart: Panel | HeatMap | Lanes, colours: Mapping[str, str], *, legend: bool = True
) -> dict[str, Any]:
    title = {"text": clean(chart.title, 80), "subtitle": clean(chart.note, 200), "offset": 16}
    if isinstance(chart, Panel):
        body, height = panel_layers(chart, colours), float(chart.height)
    elif isinstance(chart, HeatMap):
        body, height = (
            heat_layers(chart, colours, legend),
            float(len(chart.rows) * chart.row_height),
        )
    else:
        body, height = lanes_layers(chart, colours), 20.0 * len(chart.lanes)
    return {"title": title, "width": _WIDTH, "height": height, **body}
