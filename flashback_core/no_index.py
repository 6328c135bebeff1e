"""NoIndex: what ranks that do not write have instead of an index."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["NoIndex"]


class NoIndex:
    """Takes rows and events, and keeps none.

    Args:
        path: Where rank zero has its index.
    """

    url: str | None = None
    last_step = -1

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(
        self,
        step: int,
        values: Sequence[float] | npt.NDArray[np.floating],
        exact: Mapping[str, Any] | None = None,
    ) -> None:
        """Rank zero writes the row."""

    def add_event(self, event: Mapping[str, Any]) -> None:
        """Rank zero writes its own events."""

    def resume_at(self, step: int) -> None:
        """There are no rows."""

    def close(self) -> None:
        """There is nothing to seal."""
