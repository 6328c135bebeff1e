"""Declared events: which rows they excuse."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from flashback_core.detectors.rules import CertainRules
from flashback_core.detectors.score_stream import LEVEL
from flashback_core.table import MemoryTable


def masked(window: int, *events: dict[str, object], lr: float = 1.0) -> npt.NDArray[np.bool_]:
    """Where a test is silent in 400 rows at the steps 0, 2, 4 …; the rate is `lr` from 200 on."""
    rates = np.where(np.arange(400) < 200, 1e-3, 1e-3 * lr)
    rules = CertainRules()
    rules.update(MemoryTable(2 * np.arange(400), {"lr": rates}), events)
    return rules.masked(0, 400, window)


def expect(step: int, kind: str) -> dict[str, object]:
    """A declared event."""
    return {"event": "expect", "step": step, "kind": kind}


def test_events_by_row() -> None:
    """Steps become rows, and events that are not declarations or outside the run are left out."""
    found = masked(
        1,
        expect(100, "data"),
        expect(-5, "data"),
        expect(5000, "data"),
        {"event": "resume", "step": 60},
        {"event": "run", "framework": "torch"},
        {"event": "gap", "step": 500},
    )
    begins = np.flatnonzero(np.diff(found.astype(int)) == 1) + 1
    assert begins.tolist() == [49, 249]


def test_a_milestone_is_relearnt_only_if_it_is_large() -> None:
    """A milestone of a few per cent excuses its own jump and nothing else."""
    large = masked(1, expect(400, "lr_milestone"), lr=0.1)
    small = masked(1, expect(400, "lr_milestone"), lr=0.95)
    assert large[200 : 200 + LEVEL].all()
    assert small.sum() <= 3


def test_mask() -> None:
    """A test is silent from the event until its windows lie behind it, the longer the wider."""
    short, long = masked(1, expect(200, "data")), masked(48, expect(200, "data"))
    assert not short[98]
    assert short[99 : 100 + LEVEL].all()
    assert not short[180:].any()
    assert long.sum() - short.sum() == 47


def test_undeclared_jumps_are_learnt_anew() -> None:
    """A jump of the rate that nobody declared silences the statistics too: it has its own rule."""
    assert masked(1, lr=0.1)[200:240].all()
    assert not masked(1, lr=1.0).any()
