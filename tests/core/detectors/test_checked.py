"""`detectors.checked`: what a report says was checked."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from flashback_core.detectors.first_bad_step import FirstBadStepDetector
from flashback_core.report.html import to_html
from flashback_core.table import MemoryTable
from flashback_core.testing import run_with_fault


def test_what_was_recorded_was_checked() -> None:
    """A run with everything names its invariants; a loss alone names the loss."""
    run = FirstBadStepDetector().predict(run_with_fault(first_bad_step=120))
    curve = MemoryTable(np.arange(200), {"loss": np.linspace(3, 1, 200)})
    bare = FirstBadStepDetector().predict(curve)
    assert any("own schedule" in text for text in run.facts["checked"])
    assert [text.partition(":")[0] for text in bare.facts["checked"][:2]] == [
        "Numbers that are NaN or infinite", "The loss",
    ]  # fmt: skip
    assert len(bare.facts["checked"]) < len(run.facts["checked"])
    assert "What was checked" in to_html(bare)


def test_without_a_learning_rate_updates_tell_of_it() -> None:
    """A run without the rate names what is looked at instead."""
    run = run_with_fault(first_bad_step=120)
    blind = MemoryTable(run.steps, {name: run.column(name) for name in run if name != "lr"})
    checked = FirstBadStepDetector().predict(blind).facts["checked"]
    assert any("no learning rate is recorded" in text for text in checked)
    assert not any("own schedule" in text for text in checked)


def test_samples_are_checked_where_some_came_again() -> None:
    """In a first epoch no sample comes again, and nothing was compared."""
    run = run_with_fault(first_bad_step=120)
    columns = {name: run.column(name) for name in run}
    for known, is_checked in ((-1, False), (0, False), (8, True)):
        columns["exact:samples_known"] = np.full(len(run), known, np.int32)
        facts = FirstBadStepDetector().predict(MemoryTable(run.steps, columns)).facts
        assert any("come again, with" in text for text in facts["checked"]) == is_checked


def test_too_few_rows_leave_the_statistics_out() -> None:
    """A short run says that the statistics were not applied."""
    short = MemoryTable(np.arange(20), {"loss": np.linspace(3, 1, 20)})
    assert FirstBadStepDetector().predict(short).facts["checked"][-1].startswith("Not applied")


def test_a_stated_rate_travels(tmp_path: Path) -> None:
    """A measured rate is saved, loaded and reported; a new fit forgets it."""
    run = run_with_fault(first_bad_step=120)
    detector = FirstBadStepDetector(false_alarms_per_100k=4.2)
    loaded = FirstBadStepDetector.load(detector.save(tmp_path / "d"))
    report = loaded.predict(run)
    assert report.facts["false_alarms_per_100k"] == 4.2
    assert "4.2 false alarms" in to_html(report)
    again = loaded.fit([run_with_fault(first_bad_step=None)], [None]).predict(run)
    assert "false_alarms_per_100k" not in again.facts
    by_hand = FirstBadStepDetector(thresholds={"loss/point/largest": 9.0}).predict(run)
    assert not {"false_alarms_per_100k", "budget"} & set(by_hand.facts)


def test_the_confidence_is_explained() -> None:
    """The page says what the confidence of this detector means."""
    report = FirstBadStepDetector().predict(run_with_fault(first_bad_step=120))
    assert "the share of such findings that were right" in to_html(report)
