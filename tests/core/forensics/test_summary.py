"""Tables made out of outcomes."""

from __future__ import annotations

import pytest

from flashback_core.forensics.summary import fault_row, healthy_row, summarise
from tests.core.forensics._outcomes import HEALTHY, MISS, outcome


def test_fault_row_counts_verdicts() -> None:
    """Shares, mean error with misses as 100, coverage and delay."""
    found = [
        outcome(),
        outcome(found=102, found_near=102, low=102, high=104),
        outcome(found=40, found_near=100, low=39, high=41),
        outcome(**MISS),
    ]
    row = fault_row("x", found)
    assert (row["exact"], row["within"], row["early"], row["missed"]) == (1, 2, 1, 1)
    assert row["within_from_fault"] == 3
    assert row["mae"] == pytest.approx((0 + 2 + 60 + 100) / 4)
    assert row["coverage"] == pytest.approx(1 / 3)
    assert row["median_delay"] == 3


def test_healthy_row_is_a_rate_with_its_interval() -> None:
    """Two episodes in 100 000 steps."""
    row = healthy_row("x", [outcome(**HEALTHY), outcome(**HEALTHY | {"false_alarms": 2})])
    assert (row["rate"], row["arl0"], row["n_runs_alarmed"]) == (2.0, 50_000.0, 1)
    assert row["rate_interval"] == pytest.approx((0.24, 7.22), abs=0.01)


def test_groups_keep_apart_what_differs() -> None:
    """Train is not test, undeclared is not declared, visible is not all."""
    tables = summarise([
        outcome(), outcome(split="train", **MISS), outcome(visibility=2.0),
        outcome(**HEALTHY), outcome(**HEALTHY | {"is_undeclared": True, "false_alarms": 1}),
        outcome(**HEALTHY | {"role": "twin"}),
    ])  # fmt: skip
    faults = {row["name"]: row["n"] for row in tables["faults"]}
    assert faults["six kinds of the card"] == 2
    assert faults["six kinds, visible"] == faults["all faults, invisible"] == 1
    assert faults["all faults, train and calibration"] == 1
    alarms = {row["name"]: row["episodes"] for row in tables["healthy"]}
    assert alarms["healthy, declared or without events"] == 0
    assert alarms["healthy, undeclared events"] == 1


def test_psychometric_curve_rises_with_visibility() -> None:
    """Runs go into bins of d′; those without a twin into none."""
    tables = summarise([
        outcome(visibility=1.5, **MISS), outcome(visibility=30.0), outcome(visibility=40.0),
        outcome(visibility=-1.0),
    ])  # fmt: skip
    assert [(r["n"], r["found"]) for r in tables["psychometric"]] == [(1, 0), (2, 2)]


def test_placebo_hits_are_those_soon_after_it() -> None:
    """A finding long after it is no hit."""
    placebo = {"role": "placebo", "first_bad_step": None, "injected_step": 100}
    tables = summarise([
        outcome(**placebo, found_near=120), outcome(**placebo, found_near=300),
        outcome(**placebo | MISS),
    ])  # fmt: skip
    assert (tables["placebo"]["hits"], tables["placebo"]["n"]) == (1, 3)


def test_placebo_hits_stand_beside_chance() -> None:
    """The rate of false alarms in healthy runs says how many hits chance gives."""
    placebo = {"role": "placebo", "first_bad_step": None, "injected_step": 100}
    quiet = outcome(**HEALTHY | {"false_alarms": 50})
    found = summarise([outcome(**placebo | MISS), quiet])["placebo"]
    assert found["chance"] == pytest.approx(0.0497, abs=1e-3)
    assert found["p"] == 1.0
    hit = summarise([outcome(**placebo, found_near=120), quiet])["placebo"]
    assert hit["p"] == pytest.approx(found["chance"])


def test_healthy_kinds_stand_apart_by_declaration() -> None:
    """A kind whose events were not declared has a row of its own, and a mark above 30."""
    tables = summarise([
        outcome(**HEALTHY), outcome(**HEALTHY | {"is_undeclared": True, "false_alarms": 16}),
    ])  # fmt: skip
    (declared,), (undeclared,) = tables["by_healthy_kind"], tables["by_undeclared_kind"]
    assert (declared["rate"], declared["is_above"]) == (0, False)
    assert (undeclared["rate"], undeclared["is_above"], undeclared["is_surely_above"]) == (
        32, True, False
    )  # fmt: skip


def test_faults_early_in_a_run_and_kinds_of_text_stand_apart() -> None:
    """Steps 60 to 250; natural text and smooth, made-up text."""
    tables = summarise([outcome(), outcome(first_bad_step=251, data="markov")])
    rows = {row["name"]: row["n"] for row in tables["faults"]}
    assert rows["six kinds, fault in steps 60–250"] == 1
    assert rows["six kinds, natural text"] == rows["six kinds, made-up smooth text"] == 1


def test_added_kinds_do_not_count_with_the_frozen_ones() -> None:
    """They have a row of their own."""
    tables = summarise([outcome(), outcome(kind_set="added", **MISS)])
    rows = {row["name"]: row for row in tables["faults"]}
    assert (rows["all faults"]["n"], rows["added kinds"]["n"]) == (1, 1)
    assert rows["all faults"]["exact"] == 1


def test_confidence_counts_false_alarms_as_wrong() -> None:
    """A confident false alarm on a healthy run is in the bin."""
    tables = summarise([outcome(), outcome(**HEALTHY | {"found": 9, "low": 9, "high": 9})])
    (row,) = tables["confidence"]
    assert (row["n"], row["right"]) == (2, 1)
