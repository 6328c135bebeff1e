"""The verdict of a report in words: the headline and the sentences under it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from flashback_core.report.kinds import finding_words
from flashback_core.report.model import DetectionReport, Finding
from flashback_core.report.text import clean, count, number, plural, step_span
from flashback_core.report.unseen import unseen

__all__ = ["Verdict", "confidence_meaning", "verdict"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a report says, in words.

    Attributes:
        tone: ``bad``, ``good``, ``change`` or ``quiet``; decides colour and sign.
        sign: One word that says the tone without a colour.
        headline: One line.
        sentences: What follows from it, the most important first.
    """

    tone: str
    sign: str
    headline: str
    sentences: tuple[str, ...]


def verdict(report: DetectionReport) -> Verdict:
    """The verdict of `report`."""
    if report.bad:
        return _bad(report, report.bad)
    if report.status == "not_enough_data":
        return _unsure(report)
    if report.changes:
        return _changed(report)
    return _healthy(report)


def _bad(report: DetectionReport, finding: Finding) -> Verdict:
    first, last = finding.interval
    words = finding_words(finding)
    sentences = [f"What it looks like: {words}."]
    if first == last:
        sentences.append(f"The onset is dated to this one step, {first:,}.")
    else:
        sentences.append(
            f"The onset lies in {step_span(finding.interval)}; {finding.step:,} is most likely."
        )
    sentences += [_rest(report, finding), confidence_words(finding.confidence)]
    return Verdict(
        tone="bad",
        sign="BAD",
        headline=f"This run went wrong at step {finding.step:,}: {words}.",
        sentences=tuple(s for s in sentences if s),
    )


def _rest(report: DetectionReport, finding: Finding) -> str:
    """How much of the run lies past the finding, and what else was found."""
    more = sum(f.severity == "bad" for f in report.findings) - 1
    after = f"; {plural(more, 'later finding')} below" if more else ""
    if report.last_step is None or report.last_step <= finding.step:
        return f"It is the last step recorded{after}." if report.last_step is not None else ""
    return f"The run went on to step {report.last_step:,}{after}."


def _healthy(report: DetectionReport) -> Verdict:
    checked = (
        f"{plural(report.n_steps, 'step')} were looked at{_range(report)}, and none looks wrong."
    )
    return Verdict(
        tone="good",
        sign="HEALTHY",
        headline="No bad step was found in this run.",
        sentences=tuple(
            s
            for s in (
                checked,
                false_alarm_words(report),
                "What could not be seen is listed below." if unseen(report.table) else "",
            )
            if s
        ),
    )


def _changed(report: DetectionReport) -> Verdict:
    first = report.changes[0]
    n = len(report.changes)
    return Verdict(
        tone="change",
        sign="HEALTHY, WITH CHANGES",
        headline=f"No bad step was found; {plural(n, 'change')} nobody declared.",
        sentences=(
            f"The first is at step {first.step:,}: {finding_words(first)}. It looks wanted, "
            "such as a schedule or a new data mix.",
            "If you meant it, declare it next time with rec.expect(step, kind).",
            f"{plural(report.n_steps, 'step')} were looked at{_range(report)}.",
        ),
    )


def _unsure(report: DetectionReport) -> Verdict:
    verb = "was" if report.n_steps == 1 else "were"
    seen = f"{plural(report.n_steps, 'step')} {verb} recorded{_range(report)}."
    if report.n_steps == 0:
        seen = "No step was recorded."
    return Verdict(
        tone="quiet",
        sign="NOT ENOUGH DATA",
        headline="There is not enough data to judge this run.",
        sentences=(
            seen,
            *(e for f in report.findings if f.kind == "not_enough_data" for e in f.evidence[:2]),
            "Nothing that is certain without a comparison, such as NaN or a learning rate out of "
            "bounds, was found in them; that is no proof of health.",
            "Record more steps and run flashback detect again.",
        ),
    )


def _range(report: DetectionReport) -> str:
    if report.first_step is None or report.last_step is None:
        return ""
    return f", {count(report.first_step)} to {count(report.last_step)}"


def confidence_words(confidence: float) -> str:
    """A confidence with a word for it."""
    word = "low"
    for least, name in ((0.99, "almost certain"), (0.9, "high"), (0.7, "fair")):
        if confidence >= least:
            word = name
            break
    return f"Confidence {confidence:.2f} of 1 ({word})."


def confidence_meaning(report: DetectionReport) -> str:
    """What the confidence of this report means."""
    given = report.facts.get("confidence_meaning")
    if given:
        return clean(given, 400)
    name = clean(report.detector.get("name", ""), 60)
    by = f"the detector {name}" if name else "the detector"
    return (
        f"The confidence is the weight of the evidence from 0 to 1, as {by} states it; "
        "it is not a measured probability."
    )


def false_alarm_rate(report: DetectionReport) -> float | None:
    """Measured false alarms per 100,000 healthy steps, where the report carries the figure."""
    keys = ("false_alarms_per_100k", "false_alarm_rate_per_100k", "fa_per_100k")
    return next((rate for key in keys if (rate := _rate(report, key)) is not None), None)


def nominal_budget(report: DetectionReport) -> float | None:
    """Nominal false alarms per 100,000 healthy steps that set the detector's thresholds."""
    return _rate(report, "budget")


def _rate(report: DetectionReport, key: str) -> float | None:
    value = report.facts.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if 0 <= value < math.inf else None


def expected_words(report: DetectionReport, rate: float) -> str:
    """A rate per 100,000 healthy steps, and what it comes to in a healthy run of this length."""
    expected = number(rate * report.n_steps / 100_000, 2)
    return (
        f"{number(rate, 3)} per 100,000 healthy steps; {expected} expected in a healthy run of "
        f"{plural(report.n_steps, 'step')}"
    )


def false_alarm_words(report: DetectionReport) -> str:
    """The false-alarm rate, measured or else nominal, and what it means for a run this long."""
    rate, budget = false_alarm_rate(report), nominal_budget(report)
    shown = budget if rate is None else rate
    if shown is None:
        return ""
    how = "as its thresholds are set (nominal)" if rate is None else "as measured"
    expected = number(shown * report.n_steps / 100_000, 2)
    return (
        f"The detector makes {number(shown, 3)} false alarms per 100,000 healthy steps, {how}: "
        f"{expected} expected in a healthy run of {plural(report.n_steps, 'step')}."
    )


def other_findings(report: DetectionReport) -> Iterator[Finding]:
    """Every finding but the one in the headline."""
    head = report.bad or (report.changes[0] if report.changes else None)
    return (f for f in report.findings if f is not head and f.kind != "not_enough_data")
