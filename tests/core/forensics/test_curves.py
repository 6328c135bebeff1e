"""Curves as SVG."""

from __future__ import annotations

from xml.etree import ElementTree

from flashback_core.forensics.curves import psychometric_svg, reliability_svg


def test_curve_has_a_point_with_an_interval_per_row() -> None:
    """Names are escaped, and the picture is XML."""
    rows = [
        {"d_prime": 2.0, "found": 1, "n": 4, "interval": (0.05, 0.7)},
        {"d_prime": 3e6, "found": 4, "n": 4, "interval": (0.5, 1.0)},
    ]
    root = ElementTree.fromstring(psychometric_svg({"a < b": rows}))
    space = "{http://www.w3.org/2000/svg}"
    assert len(root.findall(f"{space}circle")) == 2
    assert any(t.text == "a < b" for t in root.findall(f"{space}text"))
    places = [float(c.attrib["cx"]) for c in root.findall(f"{space}circle")]
    assert places == sorted(places)


def test_reliability_has_its_diagonal() -> None:
    """What perfect confidence would be."""
    rows = [{"confidence": 0.9, "right": 9, "n": 10, "interval": (0.6, 0.98)}]
    assert reliability_svg({"a": rows}).count("<path") > psychometric_svg({}).count("<path")
