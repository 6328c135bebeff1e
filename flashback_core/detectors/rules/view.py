"""View: the next rows of a series, with the columns that rules look at, as float64."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from flashback_core.detectors.rules.book import EventBook
from flashback_core.table import StepTable

__all__ = ["Layout", "View"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

ALWAYS = ("loss", "lr", "nonfinite", "exact:step_skipped", "exact:epoch")
"""Columns that more than one rule asks for by name."""


class Layout:
    """Which column of a table lies in which row of a view's matrix.

    Args:
        table: Any chunk of the series; all have the same columns.
        wanted: Columns that the rules look at; those that the table lacks are left out.
    """

    def __init__(self, table: StepTable, wanted: Sequence[str]) -> None:
        present = set(table)
        names = [n for n in dict.fromkeys((*ALWAYS, *wanted)) if n in present]
        self.names = tuple(names)
        self.metrics = tuple(table.names)
        self.exact = frozenset(table.exact_names)
        self.is_log = not self.exact
        self.row = {name: i for i, name in enumerate(names)}

    def matrix(self, table: StepTable) -> Floats:
        """The columns of `table`, of shape (columns, rows)."""
        if not self.names:
            return np.empty((0, len(table)))
        columns = [table.column(name) for name in self.names]
        flat = np.concatenate(columns, dtype=np.float64, casting="unsafe")
        return np.asarray(flat.reshape(len(columns), -1))


@dataclass(slots=True)
class View:
    """Rows of a series.

    Attributes:
        base: Row number of the first of them in the whole series.
        steps: Their steps.
        layout: What the rows of `matrix` are.
        matrix: Values of shape (columns, rows).
        wide: The same behind one more row, the one before the view; NaN before the first row.
        step_before: Step of that row; one before the first step for the first row.
        table: The same rows with all columns.
        book: Declared and other events by row.
    """

    base: int
    steps: Ints
    layout: Layout
    wide: Floats
    step_before: int
    matrix: Floats
    table: StepTable
    book: EventBook

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.steps)

    def has(self, name: str) -> bool:
        """Whether the series has this column and some rule looks at it."""
        return name in self.layout.row

    def column(self, name: str) -> Floats:
        """A column that `has` knows."""
        return np.asarray(self.matrix[self.layout.row[name]])

    def moved(self, name: str) -> Floats:
        """Difference of a column that `has` knows to the row before."""
        row = self.wide[self.layout.row[name]]
        return np.asarray(row[1:] - row[:-1])

    def before(self, name: str, i: int, absent: float = np.nan) -> float:
        """Value of column `name` in the row before row `i`; NaN for the first of all."""
        row = self.layout.row.get(name)
        return absent if row is None else float(self.wide[row, i])

    def value(self, name: str, i: int, absent: float = np.nan) -> float:
        """Value of column `name` in row `i` of the view; `absent` where there is no such column."""
        row = self.layout.row.get(name)
        return absent if row is None else float(self.matrix[row, i])

    def whole(self, name: str, i: int) -> int:
        """A whole number; -1 where it is not known."""
        return _whole(self.value(name, i))

    def whole_before(self, name: str, i: int) -> int:
        """The same of the row before."""
        return _whole(self.before(name, i))

    def step(self, i: int) -> int:
        """Step of row `i` of the view."""
        return int(self.steps[i])

    def skipped(self, i: int) -> bool:
        """Whether a gradient scaler skipped the update of row `i`."""
        return self.value("exact:step_skipped", i, 0.0) == 1

    def spoilt(self, i: int) -> bool:
        """Whether gradients of row `i` were not finite: what is left of a norm is no zero."""
        return self.value("nonfinite", i, 0.0) > 0

    def still(self, i: int) -> bool:
        """Whether nothing was to move in row `i`: a skipped step, or a learning rate of zero."""
        return self.skipped(i) or self.value("lr", i) == 0.0


def _whole(value: float) -> int:
    return int(value) if abs(value) < 2.0**62 else -1
