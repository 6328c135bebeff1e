"""History: the last rows of a run, by their place in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["History"]


class History:
    """The last rows of an array that grows along its last axis, in memory of a fixed size.

    Args:
        shape: Shape of one row.
        kept: Rows that are there at least, once they came.
        dtype: Of the values.

    Attributes:
        stop: Rows that came so far: the row after the last.
    """

    def __init__(
        self, shape: tuple[int, ...], kept: int, dtype: npt.DTypeLike = np.float64
    ) -> None:
        self._kept = kept
        self._data: npt.NDArray[Any] = np.empty((*shape, 2 * kept + 64), dtype)
        self._start = 0  # row of the first value that is there
        self.stop = 0

    @property
    def start(self) -> int:
        """First row that is there for sure."""
        return max(self.stop - self._kept, self._start)

    def push(self, values: npt.NDArray[Any]) -> None:
        """Add rows, of shape (…, rows)."""
        n = values.shape[-1]
        there = self.stop - self._start
        if there + n > self._data.shape[-1]:
            keep = min(self._kept, there)
            size = max(self._data.shape[-1], keep + n)
            data = np.empty((*self._data.shape[:-1], size), self._data.dtype)
            data[..., :keep] = self._data[..., there - keep : there]
            self._data, there = data, keep
            self._start = self.stop - keep
        self._data[..., there : there + n] = values
        self.stop += n

    def rows(self, first: int, stop: int) -> npt.NDArray[Any]:
        """Values of the rows first … stop − 1; those that are gone are left out."""
        return self._data[..., max(first, self._start) - self._start : stop - self._start]

    def first_of(self, first: int) -> int:
        """The row that `rows(first, …)` begins with."""
        return max(first, self._start)

    def state(self) -> dict[str, Any]:
        """What is needed to go on."""
        return {"start": self.start, "values": self.rows(self.start, self.stop).copy()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from `state`."""
        values = np.asarray(state["values"], self._data.dtype)
        self._start = self.stop = int(state["start"])
        self.push(values)
