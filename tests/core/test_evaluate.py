"""Figures about detectors, and nan where there is none."""

from __future__ import annotations

import math

import pytest

from flashback_core.detectors import LossCurveDetector
from flashback_core.evaluate import (
    Outcome,
    average_run_length,
    detection_delay,
    episodes,
    evaluate,
    false_alarm_rate,
    localisation_error,
    outcome,
)
from flashback_core.testing import healthy_run, run_with_fault


def test_undefined_is_nan() -> None:
    """No faults, no healthy steps or no alarms: nan, not zero and not an error."""
    assert math.isnan(localisation_error([]))
    assert math.isnan(localisation_error([math.nan]))
    assert math.isnan(false_alarm_rate(0, 0))
    assert math.isnan(average_run_length(0, 1000))
    assert math.isnan(detection_delay([None], [10]))
    assert math.isnan(evaluate(LossCurveDetector(), [], []).exact)


def test_episodes() -> None:
    """Alarms close together are one episode, in whatever order they come."""
    assert episodes([]) == 0
    assert episodes([100, 10, 12, 149]) == 2
    assert episodes([0, 60, 120], gap=50) == 3


def test_delay_counts_caught_faults_only() -> None:
    """An alarm before the fault is no detection, and a miss has no delay."""
    assert detection_delay([105, None, 80], [100, 100, 100]) == 5.0


def test_rates() -> None:
    """A rate is per 100 000 healthy steps, a run length is its inverse."""
    assert false_alarm_rate(3, 50_000) == 6.0
    assert average_run_length(3, 60_000) == 20_000


@pytest.mark.parametrize(
    ("true", "found", "verdict"),
    [
        (None, None, "quiet"),
        (None, 7, "false_alarm"),
        (100, None, "missed"),
        (100, 100, "exact"),
        (100, 102, "within"),
        (100, 60, "early"),
        (100, 103, "late"),
    ],
)
def test_verdicts(true: int | None, found: int | None, verdict: str) -> None:
    """Each pair of truth and finding has one name."""
    one = Outcome(first_bad_step=true, found=found, healthy_steps=0, false_alarms=0)
    assert one.verdict() == verdict


def test_evaluate_a_detector() -> None:
    """Shares, error and false alarms of a real detector on made-up runs add up."""
    runs = [run_with_fault(first_bad_step=step) for step in (150, 250)]
    scores = evaluate(LossCurveDetector(), [*runs, healthy_run()], [150, 250, None])
    assert (scores.n_faults, scores.n_healthy) == (2, 1)
    assert scores.exact == scores.within == 1.0
    assert scores.localisation_error == scores.false_alarm_rate == scores.missed == 0.0
    assert scores.healthy_steps == 148 + 248 + 400


def test_an_early_finding_is_a_false_alarm() -> None:
    """A finding before the labelled fault counts as a false alarm on healthy steps."""
    one = outcome(LossCurveDetector(), run_with_fault(first_bad_step=150), 300)
    assert one.verdict() == "early"
    assert one.false_alarms == 1
