"""Detector: the one shape that all detectors have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, Self, runtime_checkable

from flashback_core.report.model import DetectionReport
from flashback_core.table import StepTable

__all__ = ["Detector"]


@runtime_checkable
class Detector(Protocol):
    """Finds the step at which a run first went wrong."""

    def fit(self, indexes: Sequence[StepTable], first_bad_steps: Sequence[int | None]) -> Self:
        """Fit on labelled runs; None labels a healthy one. Returns self."""

    def predict(self, index: StepTable) -> DetectionReport:
        """Report on `index`, which stays as it was."""
