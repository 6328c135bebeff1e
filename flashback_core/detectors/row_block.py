"""RowBlock: a few rows that came one by one, as a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from flashback_core.schema import EXACT_FIELDS
from flashback_core.table import StepTable

__all__ = ["RowBlock", "RowView"]

_FIELDS = {field.column: field for field in EXACT_FIELDS}
_BITS = (1 << 64) - 1
Columns = tuple[tuple[str, float], ...]
"""Names of columns, each with the value that stands where a row has none."""


class RowBlock(StepTable):
    """At most `size` rows of the same columns, filled row by row and emptied at once.

    Args:
        names: Columns; those that begin with ``exact:`` are exact fields.
        size: Most rows.
    """

    def __init__(self, names: Sequence[str], size: int) -> None:
        whole = [n for n in names if n in _FIELDS and _FIELDS[n].dtype != "f8"]
        self._whole = tuple(sorted(whole, key=lambda n: _FIELDS[n].dtype == "u8"))
        self._n_signed = sum(_FIELDS[n].dtype != "u8" for n in whole)
        self._real = tuple(n for n in names if n not in self._whole)
        self._names = tuple(n for n in names if not n.startswith("exact:"))
        self._exact = tuple(n for n in names if n.startswith("exact:"))
        self._at = {name: i for i, name in enumerate(self._real)}
        self._absent = [int(_FIELDS[n].absent) & _BITS for n in self._whole]
        self._unknown = {n[6:]: _FIELDS[n].absent for n in self._whole}
        self._unknown |= {n[6:]: np.nan for n in self._real if n.startswith("exact:")}
        self._matrix = np.empty((size, len(self._real)))
        self._ints = np.empty((size, len(self._whole)), np.uint64)
        self._signed = self._ints.view(np.int64)[:, : self._n_signed]
        self._real_of = _getter(self._real)
        self._signed_of = _getter(self._whole[: self._n_signed])
        self._unsigned_of = _getter(self._whole[self._n_signed :])
        bare = tuple(name[6:] for name in self._whole)
        self._bare_signed_of = _getter(bare[: self._n_signed])
        self._bare_unsigned_of = _getter(bare[self._n_signed :])
        self._bare_real_of = _getter(tuple(n[6:] for n in self._real if n.startswith("exact:")))
        self._steps = np.empty(size, np.int64)
        self._views: dict[str, npt.NDArray[Any]] = {
            name: self._matrix[:, i] for name, i in self._at.items()
        }
        for i, name in enumerate(self._whole):
            bits = self._ints[:, i]
            self._views[name] = bits.view(np.int64) if i < self._n_signed else bits
        self._chosen: dict[tuple[str, ...], npt.NDArray[np.intp]] = {}
        self._first = self._stop = 0

    @property
    def is_full(self) -> bool:
        """Whether no row fits in any more."""
        return self._stop == len(self._steps)

    def add(self, step: int, row: Mapping[str, float]) -> None:
        """Add a row; what it lacks is unknown, what it has beside the columns is left out."""
        at = self._stop
        try:
            self._matrix[at] = self._real_of(row)
        except (KeyError, TypeError):  # one is missing, or None
            known = (row.get(name) for name in self._real)
            self._matrix[at] = [np.nan if value is None else value for value in known]
        try:
            self._signed[at] = self._signed_of(row)
            self._ints[at, self._n_signed :] = self._unsigned_of(row)
        except (KeyError, TypeError, ValueError, OverflowError):  # missing, None, NaN, too large
            known = (row.get(name) for name in self._whole)
            self._ints[at] = [
                absent if value is None or value != value else int(value) & _BITS
                for value, absent in zip(known, self._absent, strict=True)
            ]
        self._steps[at] = step
        self._stop += 1

    def add_values(
        self, step: int, values: npt.NDArray[np.float64], exact: Mapping[str, float]
    ) -> None:
        """Add a row as a recorder has it: all metrics in their order, exact fields by name.

        Args:
            step: Its step.
            values: One for each of `names`.
            exact: By name, without ``exact:``; those that the block has no column for are left out.
        """
        at, n = self._stop, len(values)
        self._matrix[at, :n] = values
        row = {**self._unknown, **exact}
        self._matrix[at, n:] = self._bare_real_of(row)
        try:
            self._signed[at] = self._bare_signed_of(row)
            self._ints[at, self._n_signed :] = self._bare_unsigned_of(row)
        except OverflowError:  # other bits of the same 64
            self._ints[at] = [int(row[name[6:]]) & _BITS for name in self._whole]
        self._steps[at] = step
        self._stop += 1

    def clear(self) -> None:
        """Drop all rows."""
        self._first = self._stop = 0

    def since(self, first: int) -> RowBlock:
        """The same rows from place `first` on, without a copy."""
        part = object.__new__(RowBlock)
        part.__dict__ = {**self.__dict__, "_first": first}
        return part

    def matrix(self, columns: tuple[str, ...]) -> npt.NDArray[np.float64]:
        """Columns of real numbers as one array of shape (columns, rows)."""
        chosen = self._chosen.get(columns)
        if chosen is None:
            chosen = self._chosen[columns] = np.array([self._at[c] for c in columns], np.intp)
        return np.ascontiguousarray(self._matrix[self._first : self._stop, chosen].T)

    @property
    def steps(self) -> npt.NDArray[np.int64]:
        """Step of each row."""
        return self._steps[self._first : self._stop]

    @property
    def names(self) -> tuple[str, ...]:
        """Metrics."""
        return self._names

    @property
    def exact_names(self) -> tuple[str, ...]:
        """Exact fields."""
        return self._exact

    @property
    def events(self) -> tuple[dict[str, Any], ...]:
        """None: they are given apart."""
        return ()

    @property
    def source(self) -> str:
        """Nothing: the rows are on their way."""
        return ""

    def column(self, name: str) -> npt.NDArray[Any]:
        """A column."""
        return self._views[name][self._first : self._stop]

    def state(self) -> dict[str, Any]:
        """The rows, as arrays by name."""
        n = self._stop
        return {
            "block/matrix": self._matrix[:n], "block/ints": self._ints[:n],
            "block/steps": self._steps[:n],
        }  # fmt: skip

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from `state`."""
        n = self._stop = len(state["block/steps"])
        self._matrix[:n], self._ints[:n] = state["block/matrix"], state["block/ints"]
        self._steps[:n] = state["block/steps"]


def _getter(names: tuple[str, ...]) -> Callable[[Mapping[str, float]], Any]:
    """All of `names` of a row at once."""
    if len(names) > 1:
        return itemgetter(*names)
    return lambda row: [row[name] for name in names]


class RowView:
    """One row as a recorder has it, to look values up by column.

    Args:
        places: Place of each metric among the values.
    """

    __slots__ = (
        "_columns", "_exact", "_exact_columns", "_is_plain", "_metrics", "_places", "_values",
    )  # fmt: skip

    def __init__(self, places: Mapping[str, int]) -> None:
        self._places = places
        self._columns: Columns = ()
        self._metrics: npt.NDArray[np.intp] = np.empty(0, np.intp)
        self._exact_columns: Columns = ()
        self._is_plain = True

    def show(self, values: npt.NDArray[np.float64], exact: Mapping[str, float]) -> RowView:
        """The view, of another row.

        Args:
            values: All metrics.
            exact: Exact fields by name, without ``exact:``.
        """
        self._values, self._exact = values, exact
        return self

    def get(self, name: str, default: Any = None) -> Any:
        """The value of a column, `default` where the row has none."""
        at = self._places.get(name)
        if at is not None:
            return float(self._values[at])
        return self._exact.get(name[6:], default) if name.startswith("exact:") else default

    def of(self, columns: Columns) -> list[float]:
        """Values of columns, each given with what stands where the row has none.

        Args:
            columns: They cost least as metrics, then exact fields, and always the same object.
        """
        if self._columns is not columns:
            self._plan(columns)
        if not self._is_plain:
            return [self.get(name, usual) for name, usual in columns]
        get = self._exact.get
        values = self._values[self._metrics].tolist()
        return [*values, *[get(name, usual) for name, usual in self._exact_columns]]

    def _plan(self, columns: Columns) -> None:
        names = [name for name, _ in columns]
        metrics = list(takewhile(self._places.__contains__, names))
        rest = columns[len(metrics) :]
        self._is_plain = all(name.startswith("exact:") for name, _ in rest)
        self._columns = columns
        self._metrics = np.array([self._places[name] for name in metrics], np.intp)
        self._exact_columns = tuple((name[6:], usual) for name, usual in rest)
