"""A rule on gradients whose largest entries become one and the same number.

Entries beyond the range of a number format become its largest number, in all tensors alike and step
after step; clipping by value does the same. Among gradients as they come two largest entries are
never the same, but by chance where they have few digits (bfloat16).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from flashback_core.detectors.rules.rule import CLEAN_ROWS
from flashback_core.detectors.rules.unusual import Unusual
from flashback_core.detectors.rules.view import Bools, Floats, Layout, View

__all__ = ["Capped"]


class Capped(Unusual):
    """Rows whose largest gradient is that of several groups, or of the row before.

    Attributes:
        last: The largest gradient of the row before the view, and its step; empty where it has
            none.
    """

    column = "grad_max"
    kind: ClassVar[str] = "gradients_capped"
    least: ClassVar[int] = CLEAN_ROWS
    keep: ClassVar[tuple[str, ...]] = (*Unusual.keep, "last")

    def __init__(self) -> None:
        super().__init__()
        self.last: list[float] = []
        self._groups: list[int] = []
        self._is_shared: Bools = np.zeros(0, bool)

    def wants(self, table_names: Sequence[str]) -> list[str]:
        """The largest gradient of the model and of each group."""
        return [n for n in table_names if n == self.column or _is_peak(n)]

    def bind(self, layout: Layout) -> None:
        """Which groups there are."""
        super().bind(layout)
        self._groups = [row for name, row in layout.row.items() if _is_peak(name)]

    def cases(self, view: View) -> Floats:
        """Each row with a gradient is one."""
        largest = view.column(self.column)
        return np.asarray(_number(largest), np.float64)

    def times(self, view: View) -> Floats:
        """Whether the largest gradient of a row is found more than once."""
        largest = view.column(self.column)
        before = np.concatenate([[self.last[0] if self.last else np.nan], largest[:-1]])
        groups = np.zeros(len(largest), np.int64)
        for row in self._groups:
            groups += view.matrix[row] == largest
        self._is_shared = groups > 1
        capped = ((largest == before) | self._is_shared) & _number(largest)
        return np.asarray(capped, np.float64)

    def begin(self, view: View, i: int) -> tuple[int, int]:
        """A number that is that of the row before began there."""
        if self._is_shared[i]:
            return super().begin(view, i)
        return view.base + i - 1, view.step(i - 1) if i else int(self.last[1])

    def run(self, view: View, hits: Bools | None) -> None:
        """As in `Unusual`; then remember the last row."""
        super().run(view, hits)
        largest = view.column(self.column)[-1:] if not self.is_silent else np.zeros(0)
        self.last = [float(largest[0]), view.step(len(view) - 1)] if _number(largest).any() else []

    def texts(self, view: View, step: int, n: int, k: int) -> list[str]:
        """In how many steps, and at which number."""
        return [
            f"From step {step} on the largest gradient entries are one and the same number, over "
            f"groups or steps, in {k} of {n} steps, and in {self.changed or 'none'} of {self.n} "
            "before: something caps them."
        ]


def _number(largest: Floats) -> Bools:
    return np.asarray((largest > 0) & np.isfinite(largest))


def _is_peak(name: str) -> bool:
    return name.startswith("group:") and name.endswith(":max_abs")
