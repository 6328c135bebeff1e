"""`report.scales`: where values stand, and the ticks beside them."""

from __future__ import annotations

import numpy as np
import pytest

from flashback_core.report.scales import HEIGHT, places, step_ticks, value_scale
from flashback_core.report.spec import Line, Panel


def panel(values: list[float], *, log: bool = False) -> Panel:
    """A panel of one line."""
    steps = np.arange(len(values))
    line = Line(steps=steps, values=np.asarray(values, np.float64), label="x")
    return Panel(title="x", domain=(-0.5, len(values) - 0.5), lines=(line,), log=log)


@pytest.mark.parametrize(
    ("values", "log"),
    [
        ([1, 2, 3], False),
        ([1e-5, 1.0, 1e4], True),
        ([0.0, 3.0, 1e5], True),
        ([5.0], False),
        ([7.0] * 4, False),
        ([-3, -1], False),
        ([np.nan, np.inf], False),
        ([1e-300, 1e300], True),
    ],
)
def test_every_value_has_a_place_and_every_panel_ticks(values: list[float], log: bool) -> None:
    """Finite values lie inside the panel, others nowhere, and there is at least one tick."""
    chart = panel(values, log=log)
    scale = value_scale(chart)
    where = scale.places(values)
    finite = np.isfinite(values)
    assert ((where[finite] >= 0) & (where[finite] <= HEIGHT)).all()
    assert np.isnan(where[~finite]).all()
    assert 1 <= len(scale.ticks()) <= 7


def test_steps_are_placed_exactly() -> None:
    """Single steps of a run of a million have places of their own."""
    at = places(np.arange(1_000_000), (-0.5, 999_999.5))
    assert (np.diff(np.floor(at)) == 1).all()


def test_step_ticks_are_whole() -> None:
    """A run of three steps is not labelled with half steps."""
    assert [w for _, w in step_ticks((-0.5, 2.5))] == ["0", "1", "2"]


def test_large_values_have_short_labels() -> None:
    """No label is a row of zeros that the room beside a chart cuts off."""
    line = Line(steps=np.arange(3), values=np.array([1.0, 5e6, 2.5e7]), label="x")
    panel = Panel(title="x", name="x", domain=(0.0, 2.0), lines=(line,))
    words = [text for _, text in value_scale(panel).ticks()]
    assert "2e7" in words or "1e7" in words
    assert max(map(len, words)) <= 7
