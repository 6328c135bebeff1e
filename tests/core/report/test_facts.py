"""`report.facts` and `report.totals`: what the records say."""

from __future__ import annotations

import numpy as np

from flashback_core.report.facts import coverage, facts
from flashback_core.report.totals import totals
from flashback_core.table import MemoryTable


def test_facts(healthy) -> None:
    """Source, steps, detector, false alarms and coverage are facts."""
    rows = dict(facts(healthy))
    assert rows["Steps looked at"] == "400 rows, steps 0 to 399"
    assert rows["Detector"] == "first-bad-step, version 2"
    assert rows["Stated false alarms"].startswith("4.2 per 100,000")
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
