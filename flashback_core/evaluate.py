"""Measuring detectors, apart from detecting. A figure that is undefined is nan.

Localisation (offline) is the signed distance of the first bad step that a report names from the
true one. Delay (online) is the step of an alarm minus the true one. False alarms are counted in
episodes per 100 000 healthy steps: the steps of a healthy run, and those before a fault.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from flashback_core.detectors.base import Detector
from flashback_core.table import StepTable

__all__ = [
    "Outcome",
    "Scores",
    "average_run_length",
    "detection_delay",
    "episodes",
    "evaluate",
    "false_alarm_rate",
    "localisation_error",
    "outcome",
]

EPISODE_GAP = 50
"""Steps between two alarms from which they are two episodes."""
PER_STEPS = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a detector said of one run.

    Attributes:
        first_bad_step: The truth; None for a healthy run.
        found: First bad step of the report, None where it names none.
        healthy_steps: Steps without a fault.
        false_alarms: Episodes of bad findings among them.
    """

    first_bad_step: int | None
    found: int | None
    healthy_steps: int
    false_alarms: int

    @property
    def error(self) -> float:
        """Found minus true step; nan where either is missing."""
        if self.first_bad_step is None or self.found is None:
            return math.nan
        return float(self.found - self.first_bad_step)

    def verdict(self, tolerance: int = 2) -> str:
        """One of exact, within, early, late, missed; false_alarm or quiet for a healthy run."""
        if self.first_bad_step is None:
            return "quiet" if self.found is None else "false_alarm"
        if self.found is None:
            return "missed"
        if abs(self.error) <= tolerance:
            return "exact" if self.error == 0 else "within"
        return "early" if self.error < 0 else "late"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """How a detector did on a set of runs; shares are of the runs with a fault.

    Attributes:
        n_faults: Runs with a fault.
        n_healthy: Runs without.
        exact: Share found at the very step.
        within: Share found within the tolerance.
        early: Share named before that: a false alarm on the way to the fault.
        missed: Share of which nothing was said.
        localisation_error: Mean absolute error in steps of the faults of which something was said.
        false_alarm_rate: Episodes per 100 000 healthy steps.
        average_run_length: Healthy steps to a false alarm (ARL0); nan where there was none.
        healthy_steps: Steps behind the last two.
    """

    n_faults: int
    n_healthy: int
    exact: float
    within: float
    early: float
    missed: float
    localisation_error: float
    false_alarm_rate: float
    average_run_length: float
    healthy_steps: int


def evaluate(
    detector: Detector,
    indexes: Sequence[StepTable],
    first_bad_steps: Sequence[int | None],
    *,
    tolerance: int = 2,
) -> Scores:
    """Run `detector` over labelled runs and sum up.

    Args:
        detector: Any detector, fitted.
        indexes: The runs.
        first_bad_steps: Truth for each; None for a healthy run.
        tolerance: Steps of error that still count as `within`.
    """
    pairs = zip(indexes, first_bad_steps, strict=True)
    outcomes = [outcome(detector, index, true, tolerance=tolerance) for index, true in pairs]
    faults = [o for o in outcomes if o.first_bad_step is not None]
    verdicts = [o.verdict(tolerance) for o in faults]
    steps, alarms = sum(o.healthy_steps for o in outcomes), sum(o.false_alarms for o in outcomes)
    return Scores(
        n_faults=len(faults),
        n_healthy=len(outcomes) - len(faults),
        exact=_share(verdicts, "exact"),
        within=_share(verdicts, "exact", "within"),
        early=_share(verdicts, "early"),
        missed=_share(verdicts, "missed"),
        localisation_error=localisation_error([o.error for o in faults]),
        false_alarm_rate=false_alarm_rate(alarms, steps),
        average_run_length=average_run_length(alarms, steps),
        healthy_steps=steps,
    )


def outcome(
    detector: Detector, index: StepTable, first_bad_step: int | None, *, tolerance: int = 2
) -> Outcome:
    """What `detector` says of one run."""
    report = detector.predict(index)
    healthy = np.asarray(index.steps)
    if first_bad_step is not None:
        healthy = healthy[healthy < first_bad_step - tolerance]
    bad = [f.step for f in report.findings if f.severity == "bad"]
    false = [step for step in bad if len(healthy) and step <= healthy[-1]]
    return Outcome(
        first_bad_step=first_bad_step,
        found=report.first_bad_step,
        healthy_steps=len(healthy),
        false_alarms=episodes(false),
    )


def episodes(steps: Sequence[int] | npt.NDArray[np.int64], *, gap: int = EPISODE_GAP) -> int:
    """Number of episodes among alarms at `steps`; alarms at most `gap` steps apart are one.

    Examples:
        >>> episodes([10, 12, 200])
        2
    """
    if not len(steps):
        return 0
    return int(np.count_nonzero(np.diff(np.sort(steps)) > gap)) + 1


def localisation_error(errors: Sequence[float]) -> float:
    """Mean absolute error over the runs of which something was said; nan where there is none."""
    known = [abs(error) for error in errors if not math.isnan(error)]
    return float(np.mean(known)) if known else math.nan


def detection_delay(alarms: Sequence[int | None], first_bad_steps: Sequence[int]) -> float:
    """Mean steps from the fault to the alarm, over the faults that were caught.

    Args:
        alarms: Step of the first alarm of each run at or after its fault, None where there is none.
        first_bad_steps: Step of each fault.

    Returns:
        The mean; nan where no fault was caught.
    """
    pairs = zip(alarms, first_bad_steps, strict=True)
    delays = [alarm - true for alarm, true in pairs if alarm is not None and alarm >= true]
    return float(np.mean(delays)) if delays else math.nan


def false_alarm_rate(n_episodes: int, healthy_steps: int) -> float:
    """Episodes per 100 000 healthy steps; nan without healthy steps."""
    return PER_STEPS * n_episodes / healthy_steps if healthy_steps else math.nan


def average_run_length(n_episodes: int, healthy_steps: int) -> float:
    """Healthy steps per false alarm (ARL0); nan where there was none to measure it by."""
    return healthy_steps / n_episodes if n_episodes else math.nan


def _share(verdicts: Sequence[str], *wanted: str) -> float:
    return sum(v in wanted for v in verdicts) / len(verdicts) if verdicts else math.nan
