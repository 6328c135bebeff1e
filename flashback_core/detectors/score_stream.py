"""Scores: how far each step lies from what its own run did just before.

`score_flat` says what they are; where the compiled kernels can be had, `score_fused` works out the
same numbers in less time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from flashback_core.detectors.compiled import kernels
from flashback_core.detectors.score_flat import LEVEL, SCALES, WARM_UP, FlatScores
from flashback_core.detectors.score_fused import FusedScores

__all__ = ["LEVEL", "SCALES", "WARM_UP", "ScoreStream"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

MANY_ROWS = 16_384
"""Rows after which numba is loaded, if nobody did so before: until then numpy has the time."""


class ScoreStream:
    """Scores of rows as they come, the same whichever backend works them out.

    Args:
        floor: Smallest scale of each feature, of shape (features, 1).
    """

    def __init__(self, floor: Floats) -> None:
        self._work: FlatScores | FusedScores = FlatScores(floor)

    @property
    def row(self) -> int:
        """Rows scored so far."""
        return self._work.row

    @property
    def backend(self) -> str:
        """What the last rows were scored by: ``flat`` or ``fused``."""
        return "fused" if isinstance(self._work, FusedScores) else "flat"

    def update(self, x: Floats, first: Ints) -> tuple[Floats, Floats]:
        """Score the next rows.

        Args:
            x: Finite values of the features, (features, rows).
            first: Row of each feature's first value, −1 if none came; (features,).

        Returns:
            Signed robust deviations, and their size over the feature's own largest so far, each
            of shape (tests, features, rows); 0 where a test has too little behind it.
        """
        if isinstance(self._work, FlatScores):
            module = kernels(is_worth_it=self._work.row + x.shape[1] > MANY_ROWS)
            if module is not None:
                self._work = FusedScores(self._work, module)
        return self._work.update(x, first)

    def state(self) -> dict[str, Any]:
        """All that later scores depend on, arrays by name; either backend can go on from it."""
        return self._work.state()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from `state`."""
        self._work.restore(state)
