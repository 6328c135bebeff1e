"""`report.window`: the rows round a finding."""

from __future__ import annotations

import numpy as np

from flashback_core.report.window import Passing, around
from flashback_core.table import MemoryTable


def test_window_holds_the_step_and_its_reference(spiked) -> None:
    """The row of the finding is its step, with 96 rows before it."""
    window = around(spiked.table, spiked.bad)
    assert window is not None
    assert window.table.steps[window.row] == 240
    assert window.row - window.shown == 32
    assert window.shown == 64


def test_reading_columns_fills_the_window(spiked) -> None:
    """Columns read on the way are not read again, and only the few rows are kept."""
    reads: list[str] = []

    class Counting(MemoryTable):
        def column(self, name: str) -> np.ndarray:
            reads.append(name)
            return super().column(name)

    table = Counting(spiked.table.steps, {n: spiked.table.column(n) for n in spiked.table})
    passing = Passing(table, spiked.bad)
    for name in passing.names:
        passing.column(name)
    window = passing.window()
    assert window is not None
    assert len(reads) == len(set(reads)) == len(list(table))
    assert all(window.table.column(n).base is None for n in window.table)


def test_a_finding_at_the_first_step(make_run, make_bad) -> None:
    """A run that is bad from its first step has a window too."""
    report = make_bad(make_run(50), 0)
    window = around(report.table, report.bad)
    assert window is not None
    assert window.row == window.shown == 0


def test_an_empty_run_has_none(make_bad, make_run) -> None:
    """No rows, no window."""
    report = make_bad(make_run(50), 10)
    assert around(MemoryTable([], {"loss": []}), report.bad) is None
