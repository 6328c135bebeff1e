"""Nominal against measured budget."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from flashback_core.detectors import LossCurveDetector
from flashback_core.errors import DetectorError
from flashback_core.forensics.budgets import BUDGETS, alarms_at_budgets, budget_rows
from flashback_core.forensics.outcomes import judge
from flashback_core.forensics.score import Without
from flashback_core.forensics.tables import LabelledRun
from flashback_core.table import MemoryTable, StepTable

N = 400
LOUD, SOFT = 3.0, 1.5


class Budgeted(LossCurveDetector):
    """Alarms at its own budget from a score of 1 on; fewer alarms cost a higher factor."""

    version = "2"
    budget = 10.0

    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        self.factor = factor

    def score(self, index: StepTable) -> Any:
        """One loud episode and one soft one."""
        score = np.zeros(len(index))
        score[100:110], score[300] = LOUD, SOFT
        return score / self.factor

    def at_budget(self, budget: float) -> Budgeted:
        """The detector at another budget."""
        return Budgeted({1: 4.0, 10: 2.0, 100: 1.0}[round(budget)])


class Rescales(Budgeted):
    """Says by which factor its score must be exceeded, so that it is computed once."""

    def score_ratio_at(self, budget: float) -> float:
        """The factor."""
        return {1: 4.0, 10: 2.0, 100: 1.0}[round(budget)]

    def at_budget(self, budget: float) -> Budgeted:
        """Is not needed."""
        raise AssertionError


def table() -> MemoryTable:
    """A run in which nothing happens."""
    return MemoryTable(np.arange(N), {"loss": np.ones(N), "lr": np.ones(N)})


@pytest.mark.parametrize("detector", [Budgeted(), Rescales()], ids=["at_budget", "ratio"])
def test_episodes_by_budget(detector: Budgeted) -> None:
    """A larger budget lets softer episodes alarm; rows of one episode count once."""
    steps = table().steps
    found = alarms_at_budgets(detector, table(), np.asarray(detector.score(table())), steps)
    assert found == {"1": 0, "10": 1, "100": 2}
    before = alarms_at_budgets(detector, table(), np.asarray(detector.score(table())), steps[:50])
    assert before == {"1": 0, "10": 0, "100": 0}


def test_detector_without_a_budget_has_no_table() -> None:
    """Nothing is counted, and no row is made."""
    run = LabelledRun(run_id="plain__s6", table=table(), facts={"fault_kind": "healthy"})
    outcome = judge("a", LossCurveDetector(), run)
    assert outcome.at_budget == {}
    assert budget_rows({"all": [outcome]}) == []


def test_thresholds_given_by_hand_have_no_budget() -> None:
    """A detector that says that no budget moves its thresholds has no table either."""

    class ByHand(Budgeted):
        def score_ratio_at(self, budget: float) -> float:
            raise DetectorError("given by hand")  # as a detector says it

    assert alarms_at_budgets(ByHand(), table(), np.zeros(N), table().steps) == {}


def test_rows_compare_nominal_and_measured() -> None:
    """Rate, ratio, interval and ARL0 by budget; the ratio of no alarm is 0 with an upper bound."""
    run = LabelledRun(run_id="plain__s6", table=table(), facts={"fault_kind": "healthy"})
    rows = budget_rows({"all": [judge("a", Rescales(), run)] * 5})
    assert [row["budget"] for row in rows] == list(BUDGETS)
    assert [row["episodes"] for row in rows] == [0, 5, 10]
    none, some, _ = rows
    assert none["ratio_interval"][0] == 0 < none["ratio_interval"][1]
    assert math.isnan(none["arl0"])
    assert (some["steps"], some["arl0"]) == (2000, 400)
    assert some["rate"] == pytest.approx(250)
    assert some["ratio"] == pytest.approx(25)
    low, high = some["ratio_interval"]
    assert low < 25 < high


def test_hidden_columns_keep_the_budget() -> None:
    """A detector that is not shown some columns has the budget of the one behind it."""
    hidden = Without(Rescales(), ("lr",))
    assert hidden.budget == 10.0
    assert hidden.score_ratio_at(1) == 4.0
    assert isinstance(Without(Budgeted(), ("lr",)).at_budget(1), Without)
    assert not hasattr(Without(LossCurveDetector(), ("lr",)), "at_budget")
