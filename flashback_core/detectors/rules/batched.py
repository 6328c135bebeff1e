"""BatchedRule: a rule on one column whose rows are looked at `EVERY` at a time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from flashback_core.detectors.rules.column import ColumnRule
from flashback_core.detectors.rules.view import Bools, Floats, Ints, View

__all__ = ["BatchedRule"]

EVERY = 32
"""Rows that wait for each other. The batches lie at fixed rows, however the rows are given."""


class BatchedRule(ColumnRule):
    """Hands its rows on in whole batches, which cost less; subclasses have `take`.

    Attributes:
        relearn: Recent rows of declared changes.
    """

    def __init__(self) -> None:
        super().__init__()
        self.relearn: list[int] = []
        self._values: Floats = np.empty(0)
        self._steps: Ints = np.empty(0, np.int64)

    def run(self, view: View, hits: Bools | None) -> None:
        """Hand on the batches that are whole."""
        if self.is_silent:
            return
        self.relearn = view.book.relearn
        base = view.base - len(self._values)
        values = np.concatenate([self._values, view.column(self.column)])
        steps = np.concatenate([self._steps, view.steps])
        due = (base + len(values)) // EVERY * EVERY - base
        if due > 0:
            self.take(values[:due], steps[:due], base)
            values, steps = values[due:], steps[due:]
        self._values, self._steps = values, steps

    def take(self, values: Floats, steps: Ints, base: int) -> None:
        """Look at the next rows, of which `base` is the first."""

    @staticmethod
    def known(row: int) -> int:
        """Last row of the batch of `row`, with which it is looked at."""
        return row // EVERY * EVERY + EVERY - 1

    def finish(self, n_rows: int) -> None:
        """Hand on what is left."""
        if len(self._values) and not self.is_silent:
            self.take(self._values, self._steps, n_rows - len(self._values))
            self._values, self._steps = self._values[:0], self._steps[:0]

    def state(self) -> dict[str, Any]:
        """As in `Rule`, with the rows that wait."""
        rows = {"values": [str(x) for x in self._values.tolist()], "at": self._steps.tolist()}
        return {**super().state(), "waiting": rows}

    def restore(self, state: Mapping[str, Any]) -> None:
        """As in `Rule`."""
        super().restore(state)
        rows = state["waiting"]
        self._values = np.array([float(x) for x in rows["values"]])
        self._steps = np.array(rows["at"], np.int64)
