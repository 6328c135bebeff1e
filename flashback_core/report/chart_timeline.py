"""The timeline of a whole run: a few series, what was found and what was declared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np

from flashback_core.bounds import bounded, whole
from flashback_core.report.downsample import min_max_rows
from flashback_core.report.events import event_words, is_step, resumes
from flashback_core.report.kinds import finding_words
from flashback_core.report.metric_words import metric_label
from flashback_core.report.model import DetectionReport, Finding
from flashback_core.report.spec import HeatMap, Lanes, Line, Mark, Panel, Rule, Span, Stack
from flashback_core.report.surprise import lost_rows
from flashback_core.report.text import plural
from flashback_core.table import StepTable

__all__ = ["glance", "timeline"]

POINTS = 1600
"""Points of one series before stretches round findings are added."""
MARKS = 400
"""Marks in one lane; more are merged into stretches."""
_SERIES = ("loss", "lr", "grad_norm", "update_norm")
_TELLING = ("loss", "grad", "norm", "acc", "lr")
_FINDINGS_DRAWN = 24
_JUMP = 60
_ROLES = {"expect": "series-1", "resume": "change", "outside": "change", "config": "change"}


def timeline(
    table: StepTable, report: DetectionReport, health: HeatMap | None = None
) -> Stack | None:
    """Loss, learning rate and norms of the whole run over its events; None for an empty run.

    Args:
        table: The run.
        report: What was found in it.
        health: A map of one row that says how far off the run was, see `chart_maps.strip_of`.
    """
    if len(table) == 0:
        return None
    domain = (float(table.steps[0]) - 0.5, float(table.steps[-1]) + 0.5)
    charts: list[Panel | HeatMap | Lanes] = [
        _panel(table, report, name, domain) for name in _series(table)
    ]
    lanes = _lanes(table, report, domain)
    charts += [c for c in (health, lanes) if c is not None]
    if not charts:
        return None
    return Stack(
        title="The whole run",
        name="timeline",
        charts=tuple(charts),
        jumps=tuple(_jumps(table, report)),
        note="Drag sideways over a chart, also with a finger, or press + and − to look closer; "
        "Escape or Whole run comes back.",
    )


def glance(table: StepTable, report: DetectionReport) -> Panel | None:
    """The first series of the whole run as one small panel; None without any."""
    names = _series(table)
    if not names:
        return None
    domain = (float(table.steps[0]) - 0.5, float(table.steps[-1]) + 0.5)
    panel = _panel(table, report, names[0], domain)
    title = f"{panel.title} over the whole run"
    return replace(panel, title=title[0].upper() + title[1:], height=88)


def _series(table: StepTable) -> list[str]:
    """The series to draw: the usual four, else the first ones that say something."""
    usual = [n for n in _SERIES if n in table.names and _has_values(table, n)]
    whole = [n for n in table.names if n not in _SERIES and not n.startswith(("hist_", "group:"))]
    whole.sort(key=lambda n: not any(word in n.lower() for word in _TELLING))
    others = (n for n in whole if _has_values(table, n) and not _is_counter(table, n))
    return [*usual, *islice(others, max(0, 3 - len(usual)))]


def _has_values(table: StepTable, name: str) -> bool:
    return bool(np.isfinite(table.column(name)).any())


def _is_counter(table: StepTable, name: str) -> bool:
    """Whether a column only counts up, as epochs, steps and times do."""
    values = bounded(table.column(name))
    return bool(np.all(np.diff(values[np.isfinite(values)]) >= 0))


def _panel(
    table: StepTable, report: DetectionReport, name: str, domain: tuple[float, float]
) -> Panel:
    values = np.asarray(table.column(name), np.float64)
    steps = table.steps
    logged = np.isfinite(values) | lost_rows(values)
    steps, values = (steps, values) if logged.all() else (steps[logged], values[logged])
    rows = min_max_rows(values, POINTS, keep=_stretches(steps, report))
    line = Line(steps=steps[rows], values=values[rows], label=metric_label(name))
    first = [f for f in report.findings if f.kind != "not_enough_data"][:_FINDINGS_DRAWN]
    return Panel(
        title=metric_label(name),
        name=name,
        domain=domain,
        lines=(line,),
        rules=tuple(Rule(step=f.step, label=f"step {f.step:,}", role=f.severity) for f in first),
        spans=tuple(_span(f) for f in first if f.interval[0] < f.interval[1]),
        log=_needs_log(values),
        height=92 if name == "loss" else 60,
    )


def _span(finding: Finding) -> Span:
    first, last = finding.interval
    return Span(first=first, last=last, label="credible interval", role=finding.severity)


def _needs_log(values: np.ndarray) -> bool:
    finite = bounded(values[np.isfinite(values)])
    if not len(finite) or finite.min() <= 0:
        return False
    low, high = np.quantile(finite[:: max(1, len(finite) // 10_000)], [0.02, 0.98])
    return bool(finite.max() > 30 * low or high > 10 * low)


def _stretches(steps: np.ndarray, report: DetectionReport) -> tuple[slice, ...]:
    """Rows round the first findings, kept in full so that zooming shows every step."""
    rows = [int(np.searchsorted(steps, f.step)) for f in report.findings[:4]]
    return tuple(slice(max(0, r - 200), r + 200) for r in rows)


def _lanes(table: StepTable, report: DetectionReport, domain: tuple[float, float]) -> Lanes | None:
    lanes = [
        ("found", tuple(_found(report, "bad"))),
        ("changes", tuple(_found(report, "change"))),
        ("declared", tuple(_events(table, "expect"))),
        ("resumed", tuple(_marks(resumes(table.events)))),
        ("written to", tuple(_events(table, "outside"))),
        ("settings", tuple(_events(table, "config"))),
        ("gaps", (*_events(table, "gap"), *_events(table, "damage"))),
        ("skipped", tuple(skipped(table))),
        ("epochs", tuple(epochs(table))),
    ]
    used = tuple((label, marks) for label, marks in lanes if marks)
    if not used:
        return None
    return Lanes(title="What happened", name="events", domain=domain, lanes=used)


def _found(report: DetectionReport, severity: str) -> Iterator[Mark]:
    for f in report.findings[:MARKS]:
        shown = f.severity == severity or (severity == "change" and f.severity == "info")
        if shown and f.kind != "not_enough_data":
            words = f"step {f.step:,}: {finding_words(f)}"
            yield Mark(step=f.step, label=words, role=f.severity)


def _events(table: StepTable, kind: str) -> Iterator[Mark]:
    return _marks([e for e in table.events if e.get("event") == kind])


def _marks(events: Sequence[Mapping[str, Any]]) -> Iterator[Mark]:
    found = [e for e in events if is_step(e.get("step"))]
    for event in found[:MARKS]:
        yield Mark(
            step=int(event["step"]),
            label=event_words(event),
            role=_ROLES.get(str(event.get("event")), "quiet"),
            last=int(event["last_step"]) if is_step(event.get("last_step")) else None,
        )


def skipped(table: StepTable) -> Iterator[Mark]:
    """Stretches of steps whose update was skipped; blocks of the run where these are too many."""
    if "exact:step_skipped" not in table.exact_names:
        return
    rows = np.flatnonzero(np.asarray(table.column("exact:step_skipped")) > 0)
    stretches = stretches_of(rows)
    if len(stretches) > MARKS:
        blocks = rows * MARKS // len(table)
        stretches = np.stack([rows[_first_of(blocks)], rows[_last_of(blocks)]], axis=1)
    for begin, end in stretches.tolist():
        first, last = int(table.steps[begin]), int(table.steps[end])
        n = int(np.searchsorted(rows, end) - np.searchsorted(rows, begin)) + 1
        until = f" to {last:,}" if last > first else ""
        words = f"step {first:,}{until}: {plural(n, 'update')} skipped"
        yield Mark(step=first, last=last, label=words, role="quiet")


def _first_of(blocks: np.ndarray) -> np.ndarray:
    return np.flatnonzero(np.diff(blocks, prepend=-1))


def _last_of(blocks: np.ndarray) -> np.ndarray:
    return np.flatnonzero(np.diff(blocks, append=blocks[-1] + 1))


def epochs(table: StepTable) -> Iterator[Mark]:
    """The first step of each epoch but the first, when there are few enough to tell apart."""
    if "exact:epoch" not in table.exact_names:
        return
    numbers = whole(table.column("exact:epoch"))
    rows = np.flatnonzero((np.diff(numbers) != 0) & (numbers[1:] >= 0)) + 1
    if len(rows) <= 60:
        for row in rows:
            step = int(table.steps[row])
            yield Mark(step=step, label=f"epoch {int(numbers[row])} begins at step {step:,}")


def stretches_of(rows: np.ndarray) -> np.ndarray:
    """First and last row of each stretch of consecutive `rows`, shape (stretches, 2)."""
    cuts = np.flatnonzero(np.diff(rows) > 1)
    begins = np.append(rows[:1], rows[cuts + 1])
    ends = np.append(rows[cuts], rows[-1:])
    return np.stack([begins, ends], axis=1)


def _jumps(table: StepTable, report: DetectionReport) -> Iterator[tuple[str, int, int]]:
    drawn = [f for f in report.findings if f.severity != "info"][:4]
    for f in drawn:
        row = int(np.searchsorted(table.steps, f.step))
        first, last = max(0, row - _JUMP), min(len(table) - 1, row + _JUMP)
        if last - first < len(table) - 1:
            yield f"Step {f.step:,}", int(table.steps[first]), int(table.steps[last])
