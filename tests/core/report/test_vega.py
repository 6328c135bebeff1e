"""`report.vega`: the same charts as Vega-Lite and pictures."""

from __future__ import annotations

import json

import pytest

from flashback_core.report import charts
from flashback_core.report.vega import to_png, to_svg, to_vega


def test_every_chart_is_plain_json(spiked, with_nan, hostile) -> None:
    """Every chart becomes strict JSON, without NaN and numpy types."""
    for report in (spiked, with_nan, hostile):
        for chart in charts.all_charts(report.table, report).values():
            json.dumps(to_vega(chart), allow_nan=False)


def test_pictures(spiked) -> None:
    """A small chart is drawn as PNG and SVG without a browser."""
    pytest.importorskip("vl_convert")
    panel = charts.moved_first(spiked.table, spiked)[0]
    assert to_png(panel, scale=1).startswith(b"\x89PNG")
    assert "<svg" in to_svg(panel, theme="dark")


@pytest.mark.slow
def test_every_picture(spiked, with_nan, hostile, loss_only) -> None:
    """Every chart of every kind of run is drawn."""
    pytest.importorskip("vl_convert")
    for report in (spiked, with_nan, hostile, loss_only):
        for chart in charts.all_charts(report.table, report).values():
            assert len(to_png(chart, scale=1)) > 2000


def test_hostile_rows_leave_no_expression(hostile) -> None:
    """A name cannot end the string in which it stands in Vega's expressions."""
    chart = charts.surprise(hostile.table, hostile)
    assert chart is not None
    text = json.dumps(to_vega(chart))
    assert "onerror=" not in text.split("labelExpr")[1].split("}")[0]
