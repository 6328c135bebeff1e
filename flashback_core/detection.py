"""`detect`: from any source to a report, with the shipped detector."""

from __future__ import annotations

from pathlib import Path

from flashback_core.detectors.base import Detector
from flashback_core.report.model import DetectionReport
from flashback_core.source import open_run
from flashback_core.table import StepTable

__all__ = ["detect"]


def detect(source: str | Path | StepTable, *, detector: Detector | None = None) -> DetectionReport:
    """Find the first bad step of a run.

    Args:
        source: A run folder, an index folder, an export, or an open index.
        detector: The detector to use; the shipped `FirstBadStepDetector` if None.

    Returns:
        The report, with the run attached so that its pages can draw it.

    Raises:
        SourceError: If `source` cannot be read as a run.
    """
    from flashback_core.detectors.first_bad_step import FirstBadStepDetector

    table = open_run(source)
    report = (detector or FirstBadStepDetector()).predict(table)
    return report.with_table(table)
