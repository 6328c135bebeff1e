"""The made-up runs and the checks for other people's detectors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import numpy as np
import pytest

from flashback_core.report.model import DetectionReport, Finding
from flashback_core.schema import BODY_GROUPS, SketchSchema
from flashback_core.table import StepTable
from flashback_core.testing import DETECTOR_CHECKS, FAULTS, healthy_run, run_with_fault


class Guesser:
    """A detector that always names step 250."""

    def fit(self, indexes: Sequence[StepTable], first_bad_steps: Sequence[int | None]) -> Self:
        """Learn nothing."""
        return self

    def predict(self, index: StepTable) -> DetectionReport:
        """Name step 250 whatever came."""
        one = Finding(step=250, interval=(250, 250), kind="guess", confidence=1.0, severity="bad")
        return DetectionReport(
            status="bad", n_steps=len(index), first_step=0, last_step=1, findings=(one,)
        )


def test_runs_have_the_whole_schema() -> None:
    """A made-up run holds every metric of the schema, whatever its groups."""
    for groups in (SketchSchema().groups, BODY_GROUPS, ("experts",)):
        schema = SketchSchema(groups)
        assert healthy_run(50, schema=schema).names == schema.names


def test_runs_repeat() -> None:
    """The same seed gives the same run, another seed another one."""
    one, same, other = (healthy_run(50, seed=seed).column("loss") for seed in (3, 3, 4))
    np.testing.assert_array_equal(one, same)
    assert not np.array_equal(one, other)


@pytest.mark.parametrize("kind", FAULTS)
def test_faults_begin_at_their_step(kind: str) -> None:
    """Nothing differs before the first bad step, and something does at it."""
    healthy, broken = healthy_run(200), run_with_fault(first_bad_step=90, n_steps=200, kind=kind)
    np.testing.assert_array_equal(healthy.values[:90], broken.values[:90])
    assert not np.array_equal(healthy.values[90], broken.values[90], equal_nan=True)


def test_unknown_fault() -> None:
    """A fault that nobody knows is refused with the list of those that are."""
    with pytest.raises(ValueError, match="gradient_jump"):
        run_with_fault(first_bad_step=9, kind="gremlin")


def test_checks_catch_a_guesser() -> None:
    """A detector that always says the same fails the checks that it should."""
    failed = set()
    for check in DETECTOR_CHECKS:
        try:
            check(Guesser())
        except AssertionError:
            failed.add(check.__name__)
    assert failed == {"check_is_silent_on_a_healthy_run", "check_finds_a_non_finite_step"}
