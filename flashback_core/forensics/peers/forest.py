"""Isolation Forest of scikit-learn on the innovations of metrics that every model has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from flashback_core.errors import NoBaselineError
from flashback_core.forensics.peers.base import CalibratedPeer, column, innovations, log_scaled
from flashback_core.table import StepTable

__all__ = ["Forest"]

Floats = npt.NDArray[np.float64]

_METRICS = (
    "loss", "grad_norm", "grad_max", "update_norm", "update_max", "param_norm",
    *(f"grad_norm_p{q}" for q in (10, 25, 50, 75, 90)),
)  # fmt: skip
_WARM_UP = 60
_ROWS = 20_000


class Forest(CalibratedPeer):
    """The forest is grown on healthy training rows; its threshold comes from the same."""

    name = "Isolation Forest"
    doc = "100 trees on the innovations of 11 metrics; 10 alarms / 100k in training"
    needs = "sklearn"

    def __init__(self) -> None:
        self._forest: Any = None

    def fit(self, indexes: Sequence[StepTable], first_bad_steps: Sequence[int | None]) -> Self:
        """Grow the forest on healthy rows, then set the threshold."""
        from sklearn.ensemble import IsolationForest

        parts = []
        for table, bad in zip(indexes, first_bad_steps, strict=True):
            stop = len(table) if bad is None else int(np.searchsorted(table.steps, bad))
            parts.append(_inputs(table)[_WARM_UP:stop])
        rows = np.concatenate(parts) if parts else np.empty((0, len(_METRICS)))
        if len(rows) < 100:
            msg = f"{self.name}: {len(rows)} healthy rows are too few; give more training runs"
            raise NoBaselineError(msg)
        chosen = np.random.default_rng(0).permutation(len(rows))[:_ROWS]
        self._forest = IsolationForest(random_state=0).fit(rows[chosen])
        return super().fit(indexes, first_bad_steps)

    def score(self, table: StepTable) -> Floats:
        """How isolated each row is; 0 before the forest is grown and during the warm-up."""
        out = np.zeros(len(table))
        if self._forest is not None and len(table) > _WARM_UP:
            out[_WARM_UP:] = -self._forest.score_samples(_inputs(table)[_WARM_UP:])
        return out


def _inputs(table: StepTable) -> Floats:
    return np.stack([innovations(log_scaled(column(table, n))) for n in _METRICS], axis=1)
