"""StepTable: the one shape that detectors, reports and commands read.

An index on disk, its Parquet export and the log of another tool all arrive as a `StepTable`: one
row per step, one column per metric, plus what is known of the run.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import numpy.typing as npt

from flashback_core.errors import MissingExtraError, SchemaError
from flashback_core.schema import unknown_metric

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

__all__ = ["MemoryTable", "StepTable"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


class StepTable(ABC):
    """Rows of a run by step. Columns are read by name, rows by slice.

    Iterating gives the column names, as with a dict or a data frame; `len` counts the rows.
    """

    @property
    @abstractmethod
    def steps(self) -> Ints:
        """Step of each row, int64, increasing."""

    @property
    @abstractmethod
    def names(self) -> tuple[str, ...]:
        """Names of the metrics, without the exact fields."""

    @property
    @abstractmethod
    def exact_names(self) -> tuple[str, ...]:
        """Columns of the exact fields, ``exact:<name>``."""

    @property
    @abstractmethod
    def events(self) -> tuple[dict[str, Any], ...]:
        """What happened beside the steps: ``{"event": kind, "step": step, …}``, in order.

        Kinds: ``expect`` (a declared regime change, with ``kind``), ``resume``, ``gap``,
        ``damage``, ``groups`` (which parameter went where), ``run`` (facts of the run).
        """

    @property
    @abstractmethod
    def source(self) -> str:
        """Where the rows come from, for people to read."""

    @abstractmethod
    def column(self, name: str) -> npt.NDArray[Any]:
        """The column `name` in its own dtype; `self[name]` is the same.

        Raises:
            SchemaError: If there is no such column.
        """

    @property
    def values(self) -> Floats:
        """All metrics, float64 of shape (rows, metrics)."""
        values = np.empty((len(self), len(self.names)))
        for i, name in enumerate(self.names):
            values[:, i] = self.column(name)
        return values

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.steps)

    def __iter__(self) -> Iterator[str]:
        """Names of the columns, metrics first."""
        return iter((*self.names, *self.exact_names))

    def __contains__(self, name: object) -> bool:
        """Whether a column of this name is there."""
        return name in self.names or name in self.exact_names

    @overload
    def __getitem__(self, key: str) -> npt.NDArray[Any]: ...
    @overload
    def __getitem__(self, key: slice) -> MemoryTable: ...
    @overload
    def __getitem__(self, key: npt.NDArray[np.bool_]) -> MemoryTable: ...
    @overload
    def __getitem__(self, key: list[str] | tuple[str, ...]) -> MemoryTable: ...
    def __getitem__(
        self, key: str | slice | npt.NDArray[np.bool_] | list[str] | tuple[str, ...]
    ) -> npt.NDArray[Any] | MemoryTable:
        """A column by name, or a table: rows by slice of row numbers or by mask, or some columns.

        Raises:
            SchemaError: If there is no such column.
            TypeError: If `key` is a number; rows are read by slice, or by step with `between`.
        """
        if isinstance(key, str):
            return self.column(key)
        if isinstance(key, slice):
            return self._rows(key)
        if isinstance(key, (int, np.integer)):
            msg = (
                f"{key!r} is neither a column name nor a slice; for one row use "
                "table[i : i + 1], for one step table.between(step, step)"
            )
            raise TypeError(msg)
        if getattr(key, "dtype", None) == np.bool_:
            return self._masked(np.asarray(key))
        return self._columns(list(key))

    def _rows(self, rows: slice) -> MemoryTable:
        columns = {name: self.column(name)[rows] for name in self}
        return MemoryTable(self.steps[rows], columns, events=self.events, source=self.source)

    def _masked(self, mask: npt.NDArray[np.bool_]) -> MemoryTable:
        if mask.shape != (len(self),):
            msg = f"the mask has shape {mask.shape}, expected ({len(self)},): one value per row"
            raise ValueError(msg)
        columns = {name: self.column(name)[mask] for name in self}
        return MemoryTable(self.steps[mask], columns, events=self.events, source=self.source)

    def _columns(self, names: Sequence[str]) -> MemoryTable:
        columns = {name: self.column(name) for name in names}
        return MemoryTable(self.steps, columns, events=self.events, source=self.source)

    def between(self, first: int, last: int) -> MemoryTable:
        """Rows whose step is in [first, last]."""
        lo, hi = np.searchsorted(self.steps, [first, last + 1])
        return self._rows(slice(int(lo), int(hi)))

    def row_of(self, step: int) -> int:
        """Row number of `step`.

        Raises:
            KeyError: If no row has this step.
        """
        row = int(np.searchsorted(self.steps, step))
        if row == len(self.steps) or self.steps[row] != step:
            raise KeyError(step)
        return row

    def to_arrow(self) -> pa.Table:
        """All columns as a pyarrow table, ``step`` first."""
        import pyarrow as pa

        return pa.table({"step": self.steps, **{name: self.column(name) for name in self}})

    def to_pandas(self) -> pd.DataFrame:
        """All columns as a data frame, indexed by step.

        Raises:
            MissingExtraError: If pandas is not installed.
        """
        if find_spec("pandas") is None:
            msg = "to_pandas needs pandas: pip install pandas; to_arrow works without it"
            raise MissingExtraError(msg)
        return self.to_arrow().to_pandas().set_index("step")

    def __repr__(self) -> str:
        """Rows, columns and source."""
        return (
            f"<{type(self).__name__} of {self.source}: {len(self)} rows, {len(self.names)} metrics>"
        )


class MemoryTable(StepTable):
    """A table whose columns are arrays in memory.

    Args:
        steps: Step of each row; must increase.
        columns: Arrays of the same length by name; names starting ``exact:`` are exact fields.
        events: See `StepTable.events`.
        source: Where the rows come from.
        ordered: Whether the steps must increase; False for rows that a resume superseded.

    Raises:
        ValueError: If a column has another length or the steps do not increase.
    """

    def __init__(
        self,
        steps: npt.ArrayLike,
        columns: Mapping[str, npt.ArrayLike],
        *,
        events: Sequence[Mapping[str, Any]] = (),
        source: str = "memory",
        ordered: bool = True,
    ) -> None:
        self._steps = np.asarray(steps, np.int64)
        if ordered and np.any(np.diff(self._steps) <= 0):
            row = int(np.argmax(np.diff(self._steps) <= 0)) + 1
            msg = (
                f"steps must increase, but row {row} has step {self._steps[row]} after "
                f"{self._steps[row - 1]}; sort the rows and keep one row per step"
            )
            raise ValueError(msg)
        self._data = {name: np.asarray(values) for name, values in columns.items()}
        for name, values in self._data.items():
            if values.shape != self._steps.shape:
                msg = f"column {name!r} has shape {values.shape}, expected {self._steps.shape}"
                raise ValueError(msg)
        self._events = tuple(dict(e) for e in events)
        self._source = source

    @property
    def steps(self) -> Ints:
        """Step of each row."""
        return self._steps

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the metrics."""
        return tuple(n for n in self._data if not n.startswith("exact:"))

    @property
    def exact_names(self) -> tuple[str, ...]:
        """Columns of the exact fields."""
        return tuple(n for n in self._data if n.startswith("exact:"))

    @property
    def events(self) -> tuple[dict[str, Any], ...]:
        """What happened beside the steps."""
        return self._events

    @property
    def source(self) -> str:
        """Where the rows come from."""
        return self._source

    def column(self, name: str) -> npt.NDArray[Any]:
        """The column `name`."""
        try:
            return self._data[name]
        except KeyError:
            raise SchemaError(unknown_metric(name, tuple(self._data))) from None
