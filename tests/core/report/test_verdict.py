"""`report.verdict`: the verdict in words."""

from __future__ import annotations

from flashback_core.report.model import Finding
from flashback_core.report.verdict import false_alarm_words, verdict


def test_bad(spiked, loss_only) -> None:
    """Step, interval and confidence are in words."""
    said = verdict(spiked)
    assert said.headline == "This run went wrong at step 240: the learning rate jumped."
    assert "The onset is dated to this one step, 240." in said.sentences
    assert any("12,950 to 13,100" in s for s in verdict(loss_only).sentences)


def test_healthy(healthy) -> None:
    """A healthy verdict says how much was looked at."""
    assert verdict(healthy).tone == "good"
    assert "400 steps were looked at, 0 to 399" in verdict(healthy).sentences[0]


def test_changes(make_run, make_report) -> None:
    """Undeclared changes are named and the way to declare them too."""
    change = Finding(
        step=9, interval=(9, 9), kind="lr_milestone", confidence=0.6, severity="change"
    )
    said = verdict(make_report(make_run(), "healthy", findings=(change,)))
    assert said.tone == "change"
    assert any("rec.expect" in s for s in said.sentences)


def test_not_enough(make_run, make_report) -> None:
    """Too few steps are no verdict, and the detector's own words are given."""
    info = Finding(step=0, interval=(0, 0), kind="not_enough_data", confidence=0.0, severity="info",
                   evidence=("20 steps are too few for a verdict.",))  # fmt: skip
    said = verdict(make_report(make_run(20), "not_enough_data", findings=(info,)))
    assert said.tone == "quiet"
    assert "20 steps are too few for a verdict." in said.sentences


def test_expected_false_alarms(healthy, spiked) -> None:
    """The stated rate is turned into the number for a run of this length; no rate, no words."""
    assert "0.017 expected in a healthy run of 400 steps" in false_alarm_words(healthy)
    assert false_alarm_words(spiked) == ""
