"""RowBlock: a few rows that came one by one, as a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from flashback_core.schema import EXACT_FIELDS
from flashback_core.table import StepTable

__all__ = ["RowBlock", "RowView"]

_FIELDS = {field.column: field for field in EXACT_FIELDS}
_BITS = (1 << 64) - 1


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
        self._whole_at = {name: i for i, name in enumerate(self._whole)}
        self._absent = np.array([int(_FIELDS[n].absent) & _BITS for n in self._whole], np.uint64)
        self._unknown: list[int] = self._absent.tolist()
        self._bare_at = {name[6:]: i for i, name in enumerate(self._whole)}
        self._matrix = np.empty((size, len(self._real)))
        self._ints = np.empty((size, len(self._whole)), np.uint64)
        self._signed = self._ints.view(np.int64)[:, : self._n_signed]
        self._real_of = _getter(self._real)
        self._signed_of = _getter(self._whole[: self._n_signed])
        self._steps = np.empty(size, np.int64)
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
            first = self._n_signed
        except (KeyError, TypeError, ValueError, OverflowError):  # missing, None, NaN, too large
            first = 0
        for i in range(first, len(self._whole)):
            value = row.get(self._whole[i])
            if value is None or value != value:  # NaN
                self._ints[at, i] = self._absent[i]
            else:
                self._ints[at, i] = int(value) & _BITS
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
        self._matrix[at, n:] = [exact.get(name[6:], np.nan) for name in self._real[n:]]
        whole = self._unknown.copy()
        for name, value in exact.items():
            i = self._bare_at.get(name)
            if i is not None:
                whole[i] = int(value) & _BITS
        self._ints[at] = whole
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
        if name in self._at:
            return self._matrix[self._first : self._stop, self._at[name]]
        whole = self._ints[self._first : self._stop, self._whole_at[name]]
        return whole if _FIELDS[name].dtype == "u8" else whole.view(np.int64)

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
        values: All metrics.
        exact: Exact fields by name, without ``exact:``.
    """

    __slots__ = ("_exact", "_places", "_values")

    def __init__(
        self,
        places: Mapping[str, int],
        values: npt.NDArray[np.float64],
        exact: Mapping[str, float],
    ) -> None:
        self._places, self._values, self._exact = places, values, exact

    def get(self, name: str, default: Any = None) -> Any:
        """The value of a column, `default` where the row has none."""
        if name.startswith("exact:"):
            return self._exact.get(name[6:], default)
        at = self._places.get(name)
        return default if at is None else float(self._values[at])
