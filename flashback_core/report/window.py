"""The rows of a run round a finding: what the small charts and the tables beside them look at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from flashback_core.report.model import Finding
from flashback_core.report.surprise import REFERENCE_ROWS
from flashback_core.report.wrapped import WrappedTable
from flashback_core.table import MemoryTable, StepTable

__all__ = ["Passing", "Window", "around"]

BEFORE, AFTER = 32, 24
WIDEST = 240


@dataclass(frozen=True, slots=True)
class Window:
    """Rows round a finding.

    Attributes:
        table: The rows in memory, reference rows in front.
        shown: First row of `table` that charts show.
        row: Row of `table` at which the finding begins.
    """

    table: MemoryTable
    shown: int
    row: int

    @property
    def domain(self) -> tuple[float, float]:
        """Where the steps shown begin and end."""
        steps = self.table.steps[self.shown :]
        return float(steps[0]) - 0.5, float(steps[-1]) + 0.5

    def row_of(self, step: int) -> int | None:
        """Row of `table` at `step` or the first one after it; None outside of the window."""
        steps = self.table.steps
        return _row(self.table, step) if steps[0] <= step <= steps[-1] else None


class Passing(WrappedTable):
    """A run that keeps the rows round a finding of every column that is read through it.

    Charts of the whole run read each column once; the window then costs no second reading. Nothing
    but these few rows stays in memory.
    """

    def __init__(self, table: StepTable, finding: Finding | None) -> None:
        super().__init__(table)
        self._span = _span(table, finding) if finding is not None and len(table) else None
        self._kept: dict[str, npt.NDArray[Any]] = {}

    def column(self, name: str) -> npt.NDArray[Any]:
        """The column `name`, of which the rows round the finding are kept."""
        values = super().column(name)
        if self._span is not None and name not in self._kept:
            begin, _, _, end = self._span
            self._kept[name] = values[begin:end].copy()  # a view would keep the whole column
        return values

    def window(self) -> Window | None:
        """The rows round the finding; None without a finding or without rows."""
        if self._span is None:
            return None
        begin, shown, row, end = self._span
        for name in self:
            if name not in self._kept:
                self.column(name)
        columns = {name: self._kept[name] for name in self}
        steps = self.steps[begin:end].copy()
        near = MemoryTable(steps, columns, events=self.events, source=self.source)
        return Window(table=near, shown=shown - begin, row=row - begin)


def around(table: StepTable, finding: Finding) -> Window | None:
    """The rows round `finding`; None for an empty run."""
    return Passing(table, finding).window()


def _span(table: StepTable, finding: Finding) -> tuple[int, int, int, int]:
    """First row to keep, first row to show, row of the finding, and the end."""
    row, first, last = (
        _row(table, step) for step in (finding.step, min(finding.interval), max(finding.interval))
    )
    first = max(min(first, row), row - WIDEST // 2)
    last = min(max(last, row), row + WIDEST // 2)
    shown, end = max(0, first - BEFORE), min(len(table), last + AFTER + 1)
    return max(0, shown - REFERENCE_ROWS), shown, row, end


def _row(table: StepTable, step: int) -> int:
    """Row of `step`, or of the first one after it, or the last."""
    return min(int(np.searchsorted(table.steps, step)), len(table) - 1)
