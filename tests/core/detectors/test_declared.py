"""Declared events: which rows they excuse."""

from __future__ import annotations

import numpy as np

from flashback_core.detectors.declared import declared
from flashback_core.detectors.scores import LEVEL
from flashback_core.table import MemoryTable


def table(*events: dict[str, object], lr: float = 0.1) -> MemoryTable:
    """400 rows at the steps 0, 2, 4 …; the learning rate falls to `lr` of itself at row 200."""
    rates = np.where(np.arange(400) < 200, 1e-3, 1e-3 * lr)
    return MemoryTable(2 * np.arange(400), {"lr": rates}, events=events)


def expect(step: int, kind: str) -> dict[str, object]:
    """A declared event."""
    return {"event": "expect", "step": step, "kind": kind}


def test_events_by_row() -> None:
    """Steps become rows, and events that are not declarations or outside the run are left out."""
    found = declared(
        table(
            expect(100, "data"),
            expect(-5, "data"),
            expect(5000, "data"),
            {"event": "resume", "step": 60},
            {"event": "run", "framework": "torch"},
            {"event": "gap", "step": 300},
        )
    )
    assert found.relearn == (50, 150)


def test_a_milestone_is_relearnt_only_if_it_is_large() -> None:
    """A milestone of a few per cent excuses its own jump and nothing else."""
    large = declared(table(expect(400, "lr_milestone")))
    small = declared(table(expect(400, "lr_milestone"), lr=0.95))
    assert (large.lr, large.relearn) == ((200,), (200,))
    assert (small.lr, small.relearn) == ((200,), ())


def test_mask() -> None:
    """A test is silent from the event until its windows lie behind it, the longer the wider."""
    found = declared(table(expect(200, "data")))
    short, long = found.masked(1), found.masked(48)
    assert not short[98]
    assert short[99 : 100 + LEVEL].all()
    assert not short[180:].any()
    assert long.sum() - short.sum() == 47
    assert found.masked(1, also=(300,))[300]


def test_freezing() -> None:
    """Freezes and unfreezes are known as such."""
    found = declared(table(expect(100, "freeze"), expect(200, "unfreeze")))
    assert found.freezing == (50, 100)
    assert found.near(51, found.freezing)
    assert not found.near(53, found.freezing)
