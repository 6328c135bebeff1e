"""`report.facts` and `report.totals`: what the records say."""

from __future__ import annotations

import numpy as np
import pytest

from flashback_core.report.facts import coverage, facts
from flashback_core.report.totals import totals
from flashback_core.report.verdict import false_alarm_words
from flashback_core.table import MemoryTable


def test_facts(healthy) -> None:
    """Source, steps, detector, false alarms and coverage are facts."""
    rows = dict(facts(healthy))
    assert rows["Steps looked at"] == "400 rows, steps 0 to 399"
    assert rows["Detector"] == "first-bad-step, version 2"
    assert rows["Measured false alarms"].startswith("4.2 per 100,000 healthy steps; 0.017 expected")
    assert "Nominal false alarms" not in rows
    assert rows["Coverage"] == "every step between first and last"


def test_coverage() -> None:
    """Missing steps are counted; an export logged every 50 steps says so."""
    assert coverage(MemoryTable([0, 1, 2, 5, 6], {})) == "2 steps missing"
    assert coverage(MemoryTable(np.arange(0, 500, 50), {})) == "one row every 50 steps, as logged"


def test_totals(with_nan, healthy) -> None:
    """NaN steps are counted with first and last; a healthy run has none of anything."""
    assert dict(totals(with_nan.table))["NaN or infinite gradients"] == (
        "169 steps, first at step 431, last at step 599"
    )
    rows = dict(totals(healthy.table))
    assert all("none" in v for k, v in rows.items() if k != "Loss")


def test_a_loss_that_never_is_a_number() -> None:
    """A loss that is NaN from the first step is said to be that."""
    table = MemoryTable([0, 1], {"loss": [np.nan, np.nan]})
    assert dict(totals(table))["Loss"] == "never a finite number"


def test_a_nominal_budget_is_said_apart(make_run, make_report) -> None:
    """What thresholds are set to is not passed off as measured, and counts for this run."""
    report = make_report(make_run(), "healthy", facts={"budget": 2.5})
    rows = dict(facts(report))
    assert rows["Measured false alarms"].startswith("nobody has measured")
    assert rows["Nominal false alarms"].startswith("2.5 per 100,000 healthy steps; 0.01 expected")
    assert "Budget" not in rows
    assert (
        "2.5 false alarms per 100,000 healthy steps, as its thresholds are set"
        in false_alarm_words(report)
    )


@pytest.mark.parametrize("odd", [None, True, "2", -1, float("nan"), float("inf"), [2.0]])
def test_odd_rates_are_left_out(make_run, make_report, odd: object) -> None:
    """A rate that is no number says nothing."""
    report = make_report(make_run(), "healthy", facts={"budget": odd, "false_alarms_per_100k": odd})
    assert "Nominal false alarms" not in dict(facts(report))
    assert false_alarm_words(report) == ""
