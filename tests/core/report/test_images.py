"""`report.images`: pictures for trackers, and what moved first as lines."""

from __future__ import annotations

import sys

import pytest

from flashback_core.report.images import moved_lines, pictures


def test_pictures(spiked, healthy) -> None:
    """A bad run has both pictures, a healthy one its timeline."""
    pytest.importorskip("vl_convert")
    found = pictures(spiked)
    assert list(found) == ["timeline", "moved_first"]
    assert all(png.startswith(b"\x89PNG") and len(png) > 5000 for png in found.values())
    assert list(pictures(healthy)) == ["timeline"]


def test_without_the_extra(spiked, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the extra `report` there are none, and nothing fails."""
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    assert pictures(spiked) == {}


def test_without_the_run(spiked) -> None:
    """A report without its run has nothing to draw."""
    bare = type(spiked).from_json(spiked.to_json())
    assert pictures(bare) == {}
    assert moved_lines(bare) is None


def test_lines(spiked, healthy) -> None:
    """Deviations are small before the finding and large from it on; a healthy run has none."""
    moved = moved_lines(spiked)
    assert moved is not None
    at = moved.steps.index(240)
    assert list(moved.lines) == ["lr", "update_norm", "group:mlp_in:update_norm"]
    line = moved.lines["update_norm"]
    assert len(line) == len(moved.steps)
    assert max(abs(v) for v in line[:at] if v is not None) < 6 < min(line[at:])
    assert moved_lines(healthy) is None
