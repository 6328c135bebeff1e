"""Declared events: what the loop said would change, and for how long that excuses what."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from flashback_core.detectors.scores import LEVEL
from flashback_core.table import StepTable

__all__ = ["LR_KIND", "Declared", "declared"]

Bools = npt.NDArray[np.bool_]

LR_KIND = "lr_milestone"
SMALL_LR_STEP = 0.3
"""A declared step of the log learning rate below this leaves nothing to be learnt anew."""
FREEZING = frozenset({"freeze", "unfreeze"})
SETTLE = 16
"""Rows that a run may take to settle after a declared event, beyond the windows themselves."""


@dataclass(frozen=True)
class Declared:
    """Rows of declared events.

    Attributes:
        n_rows: Rows of the run.
        lr: Rows at which the learning rate may jump.
        relearn: Rows from which the baseline must be learnt anew.
        freezing: Rows at which groups may stop or start.
    """

    n_rows: int
    lr: tuple[int, ...]
    relearn: tuple[int, ...]
    freezing: tuple[int, ...]

    def near(self, row: int, rows: Sequence[int]) -> bool:
        """Whether `row` is within one row of any of `rows`."""
        return any(abs(row - other) <= 1 for other in rows)

    def masked(self, window: int, also: Sequence[int] = ()) -> Bools:
        """Rows at which a test of `window` rows has no say.

        Args:
            window: Rows that the test looks at.
            also: More rows from which the baseline must be learnt anew.
        """
        mask = np.zeros(self.n_rows, dtype=bool)
        for row in (*self.relearn, *also):
            mask[max(row - 1, 0) : row + LEVEL + window + SETTLE] = True
        return mask


def declared(table: StepTable) -> Declared:
    """The declared events of `table` by row; events outside its steps are left out."""
    lr, relearn, freezing = [], [], []
    for event in table.events:
        row = _row(table, event.get("step"))
        if row is None or event.get("event") not in ("expect", "gap"):
            continue
        kind = str(event.get("kind", event["event"]))
        if kind == LR_KIND:
            lr.append(row)
        if kind in FREEZING:
            freezing.append(row)
        if kind != LR_KIND or abs(_lr_step(table, row)) > SMALL_LR_STEP:
            relearn.append(row)
    return Declared(len(table), tuple(lr), tuple(relearn), tuple(freezing))


def _row(table: StepTable, step: object) -> int | None:
    if not isinstance(step, (int, float, np.integer)) or not len(table):
        return None
    row = int(np.searchsorted(table.steps, step))
    return row if row < len(table) and step >= table.steps[0] else None


def _lr_step(table: StepTable, row: int) -> float:
    """Step of the log learning rate around `row`; infinite where it is not known."""
    if "lr" not in table:
        return np.inf
    around = np.asarray(table.column("lr"), np.float64)[max(row - 2, 0) : row + 2]
    around = around[np.isfinite(around) & (around > 0)]
    return float(np.log(around.max() / around.min())) if len(around) > 1 else np.inf
