"""Online: the detector beside a recorder, row by row while the run goes on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from flashback_core.detectors.first_bad_step import FirstBadStepDetector
from flashback_core.report.model import Finding
from flashback_core.schema import EXACT_FIELDS, SketchSchema
from flashback_core.table import StepTable

__all__ = ["CATCH_UP", "Online"]

Floats = npt.NDArray[np.float64]

CATCH_UP = 512
"""Rows of a run that is continued from which the detector learns what is normal in it."""
_EXACT = tuple(field.column for field in EXACT_FIELDS)


class Online:
    """Gives the rows of a recorder to a `DetectorStream`, as the index will give them back.

    Args:
        schema: Of the rows.
        tell: Called with each finding that is new.
        detector: None takes the shipped one.
    """

    def __init__(
        self,
        schema: SketchSchema,
        tell: Callable[[Finding], object],
        detector: FirstBadStepDetector | None = None,
    ) -> None:
        self._stream = (detector or FirstBadStepDetector()).stream()
        self._stream.begin((*schema.names, *_EXACT))
        self._short = np.array([metric.dtype == "f4" for metric in schema.metrics])
        self._tell = tell

    def catch_up(self, table: StepTable) -> None:
        """Learn from the last rows of a run that is continued; what they hold has been told."""
        part = table[max(len(table) - CATCH_UP, 0) :]
        for event in table.events:
            self._stream.add_event(event)
        self._stream.learn(part)

    def row(self, step: int, values: Floats, exact: Mapping[str, float]) -> None:
        """Look at a row that was written.

        Args:
            step: Its step.
            values: All metrics, in the schema's order.
            exact: Exact fields by name.
        """
        with np.errstate(over="ignore"):
            kept = np.where(self._short, values.astype(np.float32), values)
        self._tell_all(self._stream.push(step, kept, exact))

    def event(self, event: Mapping[str, Any]) -> None:
        """Take note of an event of the run."""
        self._stream.add_event(event)

    def close(self) -> None:
        """Tell what waited for rows that will not come."""
        self._tell_all(self._stream.finish())

    def _tell_all(self, found: list[Finding]) -> None:
        # of several signs of one fault the surest first: an alert is made of that one
        for finding in sorted(found, key=lambda f: (f.step, -f.confidence)):
            self._tell(finding)
