"""One optimizer's rows of a run with several: what charts can draw as one line."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from flashback_core.bounds import whole
from flashback_core.report.model import Finding
from flashback_core.report.wrapped import WrappedTable
from flashback_core.table import StepTable

__all__ = ["OneOptimizer", "one_optimizer"]

_COLUMN = "exact:optimizer"


class OneOptimizer(WrappedTable):
    """The rows of `table` that one optimizer made.

    Attributes:
        optimizer: Index of the optimizer.
        others: How many other optimizers the run has.
    """

    def __init__(self, table: StepTable, rows: npt.NDArray[np.intp], optimizer: int) -> None:
        super().__init__(table)
        self._rows_of_it, self._steps = rows, table.steps[rows]
        self.optimizer = optimizer
        self.others = len(np.unique(np.asarray(table.column(_COLUMN)))) - 1

    @property
    def steps(self) -> npt.NDArray[np.int64]:
        """Step of each of its rows."""
        return self._steps

    def column(self, name: str) -> npt.NDArray[Any]:
        """The column `name`, of its rows."""
        return super().column(name)[self._rows_of_it]


def one_optimizer(table: StepTable, finding: Finding | None) -> StepTable:
    """`table` itself, or of a run with several optimizers the rows of the one that went wrong.

    Args:
        table: The run.
        finding: What was found; without one the rows of the first optimizer are taken.
    """
    if _COLUMN not in table.exact_names or len(table) == 0:
        return table
    optimizers = whole(table.column(_COLUMN))
    if (optimizers == optimizers[0]).all():
        return table
    row = 0
    if finding is not None:
        row = min(int(np.searchsorted(table.steps, finding.step)), len(table) - 1)
    rows = np.flatnonzero(optimizers == optimizers[row])
    return OneOptimizer(table, rows, int(optimizers[row]))
