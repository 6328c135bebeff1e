"""Presence: whether a value that is missing should have been there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from flashback_core.detectors.rules.view import Ints, View

__all__ = ["REGULAR", "Presence", "Spread"]

REGULAR = 4
"""Values in a row after which a value that is missing was not finite."""
FEW, GONE = 2, 20
"""So few values in a row will do where none has come in so many rows up to the end."""


class Presence:
    """When one column had finite values so far. Only rows at which that changes are given to it.

    Attributes:
        is_there: Whether the row before had a value.
        since: Row from which on it has had one, or none.
        seen: Values before `since`.
        widest: Largest distance of two of them.
        last: Row of the last value, -1 for none.
    """

    def __init__(self) -> None:
        self.is_there = True
        self.since = self.seen = self.widest = 0
        self.last = -1

    def missing(self, row: int) -> bool:
        """Take in that `row` has no value; whether it should have had one."""
        if self.is_there:
            self._close(row)
        regular = self.widest <= 1
        overdue = row - self.last > 2 * max(self.widest, 1)
        return self.seen >= REGULAR and (regular or overdue)

    def _close(self, row: int) -> None:
        n = row - self.since
        self.is_there, self.since = False, row
        self.seen += n
        if n:
            self.widest, self.last = max(self.widest, int(n > 1)), row - 1

    def present(self, row: int) -> None:
        """Take in that `row` has a value."""
        if not self.is_there:
            self.widest = max(self.widest, row - self.last if self.seen else 0)
            self.is_there, self.since = True, row

    def has_ended(self, n_rows: int) -> bool:
        """Whether the first rows have values and none of the many after them has, to the end."""
        is_start = self.seen >= FEW and self.widest <= 1 and self.last == self.seen - 1
        return is_start and not self.is_there and n_rows - self.since >= GONE

    @property
    def overdue_at(self) -> int:
        """First row at which a value that stays away is overdue."""
        return self.last + 2 * max(self.widest, 1) + 1

    def state(self) -> list[int]:
        """Its numbers."""
        return [int(self.is_there), self.since, self.seen, self.widest, self.last]

    def restore(self, state: Sequence[int]) -> None:
        """Go on from a state."""
        self.is_there = bool(state[0])
        self.since, self.seen, self.widest, self.last = state[1:]


class Spread:
    """Which columns of a log are filled in the rows that have a value of a watched column.

    A row that carries values which rows with a loss do not have is of another kind, an evaluation.

    Args:
        watched: Columns that may be missing.
        columns: All metrics of the log.
    """

    def __init__(self, watched: Sequence[str], columns: Sequence[str]) -> None:
        self.watched, self.columns = list(watched), list(columns)
        self.filled: Ints = np.zeros((len(watched), len(columns)), np.int64)
        self.known: Ints = np.zeros(len(watched), np.int64)

    def is_other_kind(self, view: View, name: str, i: int) -> bool:
        """Whether row `i` holds a column that most rows with a `name` left empty so far."""
        j = self.watched.index(name)
        known = np.isfinite(view.column(name)[: i + 1])
        n = int(self.known[j] + known.sum())
        for k, column in enumerate(self.columns):
            values = np.asarray(view.table.column(column)[: i + 1], np.float64)
            there = ~np.isnan(values)
            if there[i] and 2 * int(self.filled[j, k] + (there & known).sum()) < n:
                return True
        return False

    def after(self, view: View) -> None:
        """Count the rows of a view that is done."""
        columns = [np.asarray(view.table.column(c), np.float64) for c in self.columns]
        there = ~np.isnan(np.stack(columns)) if columns else np.zeros((0, len(view)), bool)
        known = np.stack([np.isfinite(view.column(n)) for n in self.watched])
        self.filled += known.astype(np.int64) @ there.T.astype(np.int64)
        self.known += known.sum(axis=1)

    def state(self) -> dict[str, Any]:
        """Its counts."""
        return {
            "columns": self.columns, "filled": self.filled.tolist(), "known": self.known.tolist()
        }  # fmt: skip

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a state."""
        self.columns = [str(c) for c in state["columns"]]
        self.filled = np.array(state["filled"], np.int64).reshape(-1, len(self.columns))
        self.known = np.array(state["known"], np.int64)
