"""WrappedTable: a run as it is, for those that read some of it in another way."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from flashback_core.table import StepTable

__all__ = ["WrappedTable"]


class WrappedTable(StepTable):
    """Everything that `table` says; a subclass changes which rows or columns are read, and how."""

    def __init__(self, table: StepTable) -> None:
        self._table = table

    @property
    def steps(self) -> npt.NDArray[np.int64]:
        """Step of each row."""
        return self._table.steps

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the metrics."""
        return self._table.names

    @property
    def exact_names(self) -> tuple[str, ...]:
        """Columns of the exact fields."""
        return self._table.exact_names

    @property
    def events(self) -> tuple[dict[str, Any], ...]:
        """What happened beside the steps."""
        return self._table.events

    @property
    def source(self) -> str:
        """Where the rows come from."""
        return self._table.source

    def column(self, name: str) -> npt.NDArray[Any]:
        """The column `name`."""
        return self._table.column(name)
