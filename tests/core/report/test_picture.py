"""`report.picture`: charts as SVG files of their own."""

from __future__ import annotations

import xml.etree.ElementTree as ET

from flashback_core.report import charts
from flashback_core.report.picture import to_svg


def test_pictures_are_well_formed_and_bear_their_labels(spiked, with_nan, hostile) -> None:
    """Every chart is an XML file with a title and labels, and runs nothing."""
    for report in (spiked, with_nan, hostile):
        for chart in charts.all_charts(report.table, report).values():
            root = ET.fromstring(to_svg(chart))
            names = {element.tag.rpartition("}")[2] for element in root.iter()}
            assert {"title", "path", "text"} <= names
            assert not names & {"script", "image", "a", "foreignObject"}


def test_a_picture_is_as_wide_as_asked(spiked) -> None:
    """Width is in pixels, and never too small to read."""
    panel = charts.moved_first(spiked.table, spiked)[0]
    assert 'width="500"' in to_svg(panel, width=500)
    assert 'width="300"' in to_svg(panel, width=10)
