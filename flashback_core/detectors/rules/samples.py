"""Samples: values of a run of any length, at even distances, in bounded memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from flashback_core.detectors.rules.view import Floats

__all__ = ["Samples"]

MOST = 256


class Samples:
    """Every `stride`-th value given so far; the stride doubles when there are too many.

    Which values are kept depends on their number alone, not on how they are given.

    Attributes:
        stride: Distance of two values that are kept.
        n: Values given so far.
    """

    def __init__(self) -> None:
        self._kept: list[float] = []
        self.stride, self.n = 1, 0

    def add(self, values: Floats) -> None:
        """Take in the next values."""
        first = -self.n % self.stride
        self._kept += values[first :: self.stride].tolist()
        self.n += len(values)
        while len(self._kept) > MOST:
            self._kept = self._kept[::2]
            self.stride *= 2

    @property
    def values(self) -> Floats:
        """The values that are kept, in order."""
        return np.array(self._kept)

    def state(self) -> dict[str, Any]:
        """The values, as plain JSON values."""
        return {"kept": self._kept.copy(), "stride": self.stride, "n": self.n}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a state."""
        self._kept = [float(x) for x in state["kept"]]
        self.stride, self.n = int(state["stride"]), int(state["n"])
