"""`report.svg`: shapes of a chart, well-formed and without text from the run."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import numpy as np

from flashback_core.report import charts
from flashback_core.report.spec import Line, Panel, Stack
from flashback_core.report.svg import shapes


def drawn(report) -> list[str]:
    """The shapes of every chart of `report`."""
    found = []
    for chart in charts.all_charts(report.table, report).values():
        parts = chart.charts if isinstance(chart, Stack) else (chart,)
        found += [shapes(p) for p in parts]
    return found


def test_shapes_are_well_formed(spiked, with_nan, hostile) -> None:
    """Every chart parses as XML, also with NaN and with hostile names."""
    for report in (spiked, with_nan, hostile):
        for text in drawn(report):
            assert ET.fromstring(f"<svg>{text}</svg>").findall("path")


def test_no_name_is_drawn(hostile) -> None:
    """Shapes carry no text of the run at all."""
    assert not any("hit" in text or "ZZZ" in text for text in drawn(hostile))


def test_nan_breaks_the_line_and_is_marked() -> None:
    """A NaN leaves a gap in the line and a mark of its own."""
    values = np.array([1.0, 2.0, np.nan, 2.0, 1.0])
    line = Line(steps=np.arange(5), values=values, label="x")
    text = shapes(Panel(title="x", domain=(-0.5, 4.5), lines=(line,)))
    assert text.count('class="odd"') == 1
    path = text.split('class="line series-1" d="')[1].split('"')[0]
    assert path.count("M") == 2
