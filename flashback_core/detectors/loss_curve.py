"""LossCurveDetector: the floor that every other detector has to beat."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Self

import numpy as np
import numpy.typing as npt

from flashback_core.baseline import fill_forward, robust_z
from flashback_core.bounds import bounded
from flashback_core.errors import DetectorError, NoBaselineError
from flashback_core.report.model import DetectionReport, Finding, MetricScore
from flashback_core.table import StepTable

__all__ = ["LossCurveDetector"]

Floats = npt.NDArray[np.float64]


class LossCurveDetector:
    """What the loss curve alone tells: a jump between two steps, or a loss that is not finite.

    The difference of the loss to the step before is compared with the differences of the `window`
    steps before that, in robust deviations (median and median absolute deviation).

    Args:
        window: Differences in the reference window.
        threshold: Robust deviations at which a jump is a finding.

    Raises:
        DetectorError: If a setting is out of range.
    """

    version = "1"

    def __init__(self, *, window: int = 32, threshold: float = 8.0) -> None:
        if window < 4 or threshold <= 0:
            msg = f"window={window}, threshold={threshold}: window is at least 4, threshold above 0"
            raise DetectorError(msg)
        self.window = window
        self.threshold = threshold

    def __repr__(self) -> str:
        """As it is written."""
        return f"LossCurveDetector(window={self.window}, threshold={self.threshold})"

    def fit(self, indexes: Sequence[StepTable], first_bad_steps: Sequence[int | None]) -> Self:
        """Put the threshold a tenth above the largest healthy jump; return self.

        Raises:
            NoBaselineError: If no run has more healthy steps than the window.
        """
        largest = 0.0
        for table, bad in zip(indexes, first_bad_steps, strict=True):
            stop = len(table) if bad is None else int(np.searchsorted(table.steps, bad))
            largest = max(largest, float(self.score(table[:stop]).max(initial=0.0)))
        if largest == 0.0:
            msg = f"no run has {self.window + 3} healthy steps with a loss; give longer runs"
            raise NoBaselineError(msg)
        self.threshold = 1.1 * largest
        return self

    def score(self, index: StepTable) -> Floats:
        """Robust deviations of the loss difference at each row; depends on no later row."""
        if "loss" not in index or len(index) < 2:
            return np.zeros(len(index))
        loss = fill_forward(bounded(index.column("loss")))
        jumps = np.diff(loss)
        floor = 1e-9 + 1e-6 * np.abs(loss[1:])
        return np.concatenate([[0.0], np.abs(robust_z(jumps, window=self.window, floor=floor))])

    def predict(self, index: StepTable) -> DetectionReport:
        """Report on `index`, which stays as it was."""
        findings = tuple(sorted(self._findings(index), key=lambda f: f.step))[:1]
        enough = "loss" in index and len(index) > self.window + 2
        return DetectionReport(
            status="bad" if findings else "healthy" if enough else "not_enough_data",
            n_steps=len(index),
            first_step=int(index.steps[0]) if len(index) else None,
            last_step=int(index.steps[-1]) if len(index) else None,
            findings=findings,
            detector={"name": "LossCurveDetector", "version": self.version},
            source=index.source,
        ).with_table(index)

    def _findings(self, index: StepTable) -> Iterator[Finding]:
        if "loss" not in index:
            return
        loss = np.asarray(index.column("loss"), np.float64)
        broken = ~np.isfinite(loss) & np.isfinite(loss).any()
        for row in np.flatnonzero(broken)[:1]:
            text = f"loss was {loss[row]} at step {int(index.steps[row])}."
            yield _finding(int(index.steps[row]), "nonfinite", 0.99, 1e6, text)
        score = self.score(index)
        for row in np.flatnonzero(score >= self.threshold)[:1]:
            text = (
                f"The loss went from {loss[row - 1]:.4g} to {loss[row]:.4g} at step "
                f"{int(index.steps[row])}: {score[row]:.1f} robust deviations, threshold "
                f"{self.threshold:.3g}."
            )
            certainty = 1 - 0.5 * self.threshold / float(score[row])
            yield _finding(int(index.steps[row]), "loss_jump", certainty, float(score[row]), text)


def _finding(step: int, kind: str, confidence: float, score: float, text: str) -> Finding:
    return Finding(
        step=step, interval=(step, step), kind=kind, confidence=confidence, severity="bad",
        evidence=(text,), top_metrics=(MetricScore(metric="loss", score=score, step=step),),
    )  # fmt: skip
