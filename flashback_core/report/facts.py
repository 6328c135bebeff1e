"""The facts of a run for the foot of a report: what was read, by what, and what was missing.

Whatever `DetectionReport.facts` holds is listed under its own name. A page says more where these
are there: ``false_alarms_per_100k`` (measured false alarms per 100,000 healthy steps), ``budget``
(the same as the thresholds are set to), ``checked`` (sentences: what was checked),
``confidence_meaning`` (a sentence) and ``rewind`` (true where the run can be restored to any
step).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from flashback_core.report.events import event_words, resumes
from flashback_core.report.model import REPORT_VERSION, DetectionReport
from flashback_core.report.text import clean, count, number, plural
from flashback_core.report.verdict import expected_words, false_alarm_rate, nominal_budget
from flashback_core.table import StepTable

__all__ = ["facts"]

_SAID_ELSEWHERE = {
    "confidence_meaning",
    "false_alarms_per_100k",
    "false_alarm_rate_per_100k",
    "fa_per_100k",
    "budget",
    "checked",
}


def facts(report: DetectionReport) -> tuple[tuple[str, str], ...]:
    """Label and value of each fact, all of it safe text."""
    rows = [
        ("Source", clean(report.source, 200) or "not given"),
        ("Steps looked at", _steps(report)),
        ("Detector", _detector(report)),
        *_false_alarms(report),
    ]
    if report.table is not None:
        rows += _of_table(report.table)
    rows += _of_report(report.facts)
    return (*rows, ("Report format", f"version {REPORT_VERSION}"))


def _steps(report: DetectionReport) -> str:
    if report.first_step is None:
        return plural(report.n_steps, "row")
    steps = f"steps {count(report.first_step)} to {count(report.last_step)}"
    return f"{plural(report.n_steps, 'row')}, {steps}"


def _detector(report: DetectionReport) -> str:
    name = clean(report.detector.get("name", "not given"), 80)
    version = report.detector.get("version")
    return f"{name}, version {clean(version, 40)}" if version else name


def _false_alarms(report: DetectionReport) -> Iterator[tuple[str, str]]:
    """What was measured, and what the thresholds are set to."""
    rate, budget = false_alarm_rate(report), nominal_budget(report)
    measured = "nobody has measured them for this detector"
    yield "Measured false alarms", measured if rate is None else expected_words(report, rate)
    if budget is not None:
        yield "Nominal false alarms", f"{expected_words(report, budget)} (of the statistics)"


def _of_table(table: StepTable) -> Iterator[tuple[str, str]]:
    groups = {n.split(":")[1] for n in table.names if n.startswith("group:")}
    parts = f" of {plural(len(groups), 'part')} of the model and the whole" if groups else ""
    exact = plural(len(table.exact_names), "exact field")
    yield (
        "Recorded",
        f"{plural(len(table.names), 'metric')}{parts}, {exact}",
    )
    gap = coverage(table)
    if gap:
        yield "Coverage", gap
    for kind, label in (
        ("resume", "Resumed"),
        ("gap", "Gaps"),
        ("damage", "Damage"),
        ("expect", "Declared"),
    ):
        events = [e for e in table.events if e.get("event") == kind]
        events = resumes(table.events) if kind == "resume" else events
        if events:
            more = f"; and {len(events) - 4:,} more" if len(events) > 4 else ""
            yield label, "; ".join(event_words(e) for e in events[:4]) + more
    for event in table.events:
        if event.get("event") == "run":
            told = event.get("run", {k: v for k, v in event.items() if k not in {"event", "step"}})
            yield from _of_report(told if isinstance(told, Mapping) else {"run": told})


def coverage(table: StepTable) -> str:
    """How many of the steps between first and last have a row; empty for less than two rows."""
    if len(table) < 2:
        return ""
    gaps = np.diff(table.steps)
    usual = int(np.median(gaps))
    if usual > 1:
        return f"one row every {plural(usual, 'step')}, as logged"
    missing = int(gaps.sum()) - len(gaps)
    return (
        "every step between first and last" if not missing else f"{plural(missing, 'step')} missing"
    )


def _of_report(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    rows = []
    for key, value in list(facts.items())[:60]:
        if key not in _SAID_ELSEWHERE:
            rows.append((clean(str(key).replace("_", " ").capitalize(), 60), _plain(value)))
    return rows


def _plain(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return number(value, 6)
    if isinstance(value, Mapping):
        return clean(", ".join(f"{k} {v}" for k, v in list(value.items())[:40]), 300)
    if isinstance(value, (list, tuple)):
        return clean(", ".join(str(v) for v in value[:40]), 300)
    return clean(value, 300)
