"""Changes that mean nothing change no verdict, and a detector that cheats is caught."""

from __future__ import annotations

import numpy as np
import pytest

from flashback_core.detectors import FirstBadStepDetector, LossCurveDetector
from flashback_core.detectors.base import Detector
from flashback_core.detectors.published import PublishedDetector
from flashback_core.forensics.leaks import (
    CHECKS,
    check_leaks,
    gradients_scaled,
    lr_units_changed,
    permuted,
    renamed,
)
from flashback_core.forensics.tables import LabelledRun


def changed(detector: Detector, runs: list[LabelledRun]) -> dict[str, list[str]]:
    """Runs whose verdict changed, by check."""
    found = check_leaks(detector, [run for run in runs if not run.is_twin])
    return {name: entry["changed"] for name, entry in found.items() if entry["changed"]}


@pytest.mark.parametrize("detector", [FirstBadStepDetector(), LossCurveDetector()], ids=repr)
def test_ours_passes(detector: Detector, runs: list[LabelledRun]) -> None:
    """Neither length, future, order, names nor units play a part."""
    assert changed(detector, runs) == {}


def test_clock_is_caught(runs: list[LabelledRun]) -> None:
    """The published detector looks at the length of the run: its score of a prefix differs."""
    assert "score of a prefix" in changed(PublishedDetector(), runs)


def test_changes_change_what_they_say(runs: list[LabelledRun]) -> None:
    """And nothing else."""
    table = runs[0].table
    assert sorted(permuted(table)) == sorted(table)
    assert list(permuted(table)) != list(table)
    groups = {name.split(":")[1] for name in renamed(table).names if name.startswith("group:")}
    assert groups == {f"part{i}" for i in range(8)}
    scaled = gradients_scaled(table)
    np.testing.assert_array_equal(scaled["grad_norm"], table["grad_norm"] / 16)
    np.testing.assert_array_equal(scaled["update_norm"], table["update_norm"])
    bins = [f"hist_grad:{i}" for i in range(16)]
    assert sum(scaled[b].sum() for b in bins) == sum(table[b].sum() for b in bins)
    np.testing.assert_array_equal(scaled["hist_grad:5"], table["hist_grad:7"])
    np.testing.assert_array_equal(lr_units_changed(table)["lr"], table["lr"] * 1000)


def test_all_checks_run_on_all_runs(runs: list[LabelledRun]) -> None:
    """Nothing is left out silently."""
    found = check_leaks(LossCurveDetector(), runs[:2])
    assert set(CHECKS) | {"prefix", "score of a prefix"} == set(found)
    assert all(found[name]["n"] == 2 for name in CHECKS)
