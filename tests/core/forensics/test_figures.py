"""The short table of goals."""

from __future__ import annotations

import math
from typing import Any

import pytest

from flashback_core.forensics.figures import figures
from flashback_core.forensics.outcomes import RunOutcome
from flashback_core.forensics.summary import summarise
from flashback_core.forensics.tables_md import long_markdown
from tests.core.forensics._outcomes import HEALTHY, MISS, outcome


def by_name(rows: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The figures by name."""
    return {row["name"]: row for row in rows}


def made() -> list[RunOutcome]:
    """Fifty found, one missed; healthy runs, one of which alarms."""
    found = [outcome(run_id=f"x__s{i}", at_budget={}) for i in range(49)]
    quiet = HEALTHY | {"at_budget": {"1": 0, "10": 5, "100": 700}, "is_held_out": True}
    return [
        *found, outcome(is_in_top=True, is_attributed=True), outcome(**MISS),
        outcome(**quiet), outcome(**quiet | {"kind": "wsd", "false_alarms": 40}),
        outcome(role="placebo", first_bad_step=None, injected_step=9, found_near=9),
    ]  # fmt: skip


def test_every_figure_has_what_it_rests_on() -> None:
    """Value, interval, number of runs, and whether the goal is met."""
    found = by_name(figures(summarise(made())))
    exact = found["six kinds: exact"]
    assert (exact["n"], exact["goal"], exact["is_met"]) == ("50 of 51 runs", "≥ 98%", True)
    assert exact["value"] == pytest.approx(50 / 51)
    assert exact["interval"][0] < exact["value"] < exact["interval"][1]
    assert found["six kinds: missed"]["is_met"] is False
    assert found["six kinds: mean error in steps, a miss counts 100"]["value"] == pytest.approx(
        100 / 51
    )
    alarms = found["healthy, declared events: false alarms"]
    assert (alarms["value"], alarms["is_met"]) == (40.0, False)
    kinds = found["healthy kinds above 30 false alarms per 100k"]
    assert (kinds["value"], kinds["is_met"]) == (1, False)
    assert kinds["n"] == "1 of 2 kinds, 1 of them with a lower bound above it"


def test_budgets_are_met_within_a_factor_of_three() -> None:
    """Ten episodes in 100 000 steps are the nominal ten; 1 400 are not 100."""
    found = by_name(figures(summarise(made())))
    ratio = "measured ÷ nominal at {} per 100k, held-out kinds"
    assert (found[ratio.format(10)]["value"], found[ratio.format(10)]["is_met"]) == (1.0, True)
    assert found[ratio.format(100)]["is_met"] is False
    assert found[ratio.format(1)]["value"] == 0


def test_nothing_measured_is_left_open() -> None:
    """No run, no verdict: neither yes nor no."""
    rows = figures(summarise([outcome(role="twin")]))
    is_open = [row for row in rows if math.isnan(row["value"])]
    assert all(row["is_met"] is None and row["interval"] is None for row in is_open)
    assert {"hard set, with invariants: exact", "placebos: followed by a finding"} <= {
        row["name"] for row in is_open
    }


def test_placebo_is_compared_with_chance() -> None:
    """The chance of a false alarm in as many steps of the healthy runs."""
    row = by_name(figures(summarise(made())))["placebos: followed by a finding"]
    assert row["goal"] == f"chance: {1 - math.exp(-51 * 40 / 100_000):.1%}"
    assert row["is_met"] is False  # one of one, at a chance of 2 %


def test_variants_have_figures_of_their_own() -> None:
    """Without the learning rate, and without the exact fields."""
    tables = summarise(made())
    names = set(by_name(figures(tables, tables, tables)))
    assert "six kinds, lr withheld: exact" in names
    assert "hard set, 128 metrics only: within 2" in names
    assert "six kinds, lr withheld: exact" not in by_name(figures(tables))


def test_markdown_begins_with_the_figures() -> None:
    """Before the long tables, each with its interval."""
    tables = summarise(made())
    result = {
        "command": "flashback …", "date": "2026-01-01", "versions": {"flashback": "0"},
        "data": {"fingerprint": "f", "n_runs": 1, "n_faults": 1, "n_placebos": 0, "n_healthy": 0,
                 "n_twins": 0, "n_steps": 1, "n_test": 1},
        "notes": [], "docs": {}, "figures": figures(tables), "detectors": {"flashback": tables},
    }  # fmt: skip
    text = long_markdown(result)
    assert text.index("## Figures") < text.index("## All detectors")
    assert "| six kinds: exact | ≥ 98% | 98.0% | 89.7% – 99.7% | 50 of 51 runs | yes |" in text
    assert "| wsd | 1 | 50,000 | 40 | 80.0 [57.2, 109] ▲▲ |" in text
    assert "| held-out kinds | 10 | 2 | 100,000 | 10 |" in text
