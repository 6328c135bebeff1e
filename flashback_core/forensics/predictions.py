"""Predictions as columns of ``runs``: of the shipped detector, and of the loss curve alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flashback_core.detectors.base import Detector
from flashback_core.detectors.first_bad_step import FirstBadStepDetector
from flashback_core.detectors.loss_curve import LossCurveDetector
from flashback_core.forensics.dataset import NONE, write_runs_tables
from flashback_core.forensics.tables import load_runs
from flashback_core.table import StepTable

__all__ = ["predictions", "write_predictions"]


def write_predictions(folder: str | Path, detector: Detector | None = None) -> int:
    """Put the predictions of a detector and of the loss curve into ``runs``.

    Args:
        folder: The data set.
        detector: The detector; None is the shipped one.

    Returns:
        The number of runs.
    """
    ours = FirstBadStepDetector() if detector is None else detector
    updates = {
        run.run_id: predictions(run.table, run.first_bad_step, ours) for run in load_runs(folder)
    }
    return write_runs_tables(folder, updates)


def predictions(
    table: StepTable, first_bad_step: int | None, detector: Detector | None = None
) -> dict[str, Any]:
    """The columns of one run.

    Args:
        table: The run.
        first_bad_step: Its label; None for a healthy run.
        detector: The detector; None is the shipped one.
    """
    report = (FirstBadStepDetector() if detector is None else detector).predict(table)
    loss_only = LossCurveDetector().predict(table)
    metrics = report.top_metrics
    return {
        "loss_only_prediction": _or_none(loss_only.first_bad_step),
        "loss_only_error": _error(loss_only.first_bad_step, first_bad_step),
        "flashback_prediction": _or_none(report.first_bad_step),
        "flashback_error": _error(report.first_bad_step, first_bad_step),
        "flashback_metric": metrics[0].metric if metrics else "",
        "flashback_votes": len(metrics) if report.first_bad_step is not None else NONE,
    }


def _or_none(step: int | None) -> int:
    return NONE if step is None else step


def _error(found: int | None, truth: int | None) -> int:
    """Distance in steps; `NONE` where there is no such distance."""
    return NONE if found is None or truth is None else abs(found - truth)
