"""The report and the run in a terminal: words, sparklines and tables."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from flashback_core.report.advice import commands
from flashback_core.report.batch import batch_at
from flashback_core.report.causes import causes_line
from flashback_core.report.chart_multiples import movers
from flashback_core.report.charts import lead, window_of
from flashback_core.report.checks import broken
from flashback_core.report.columns import fitting, folded, name_width
from flashback_core.report.kinds import finding_words
from flashback_core.report.model import DetectionReport, Finding
from flashback_core.report.sparkline import sparkline
from flashback_core.report.terminal_table import render_groups, render_table
from flashback_core.report.text import clean, number, plural, score_words
from flashback_core.report.unseen import unseen
from flashback_core.report.verdict import other_findings, verdict
from flashback_core.report.window import Window

__all__ = ["render", "render_groups", "render_table"]

_STYLES = {
    "bad": "bold white on red",
    "good": "bold black on green",
    "change": "bold black on yellow",
    "quiet": "bold black on white",
}


_BARS = 6
"""Columns that a sparkline needs to say something."""


def render(report: DetectionReport, console: Console | None = None) -> None:
    """Print `report`: verdict, what moved first, evidence, where, and what to do.

    Args:
        report: What was found.
        console: Where to print; standard output when None.
    """
    console = console or Console()
    finding = lead(report)
    near = window_of(report)
    _verdict(console, report, finding)
    if finding:
        _moved(console, finding, near)
        _lines(console, "Evidence", [clean(e, 400) for e in finding.evidence[:8]])
        _where(console, report, finding, near)
    _others(console, report)
    _commands(console, report, finding)
    if not report.bad:
        _lines(console, "Not recorded", [f"{u.what}. {u.how}" for u in unseen(report.table)])


def _verdict(console: Console, report: DetectionReport, finding: Finding | None) -> None:
    said = verdict(report)
    console.print(
        Text.assemble((f" {said.sign} ", _STYLES[said.tone]), " ", (said.headline, "bold"))
    )
    skip = "What it looks like"  # the headline has said it
    for sentence in said.sentences:
        if not (finding and sentence.startswith(skip)):
            console.print(Text(sentence), highlight=False)
    causes = causes_line(finding) if finding else ""
    if causes:
        console.print(Text(causes), highlight=False)


def _title(console: Console, words: str) -> None:
    console.print()
    console.print(Text(words, style="bold"))


def _lines(console: Console, title: str, lines: list[str]) -> None:
    if not lines:
        return
    _title(console, title)
    for line in lines:
        text = textwrap.fill(line, console.width - 1, initial_indent="  ", subsequent_indent="  ")
        console.print(Text(text), highlight=False)


def _commands(console: Console, report: DetectionReport, finding: Finding | None) -> None:
    """Commands on lines of their own, never broken, so that they can be copied."""
    found = [c for c in commands(report, finding) if c.language == "sh"][:3]
    if found:
        _title(console, "What to do now")
    for command in found:
        console.print(Text(f"  {command.text}"), highlight=False, soft_wrap=True)
        console.print(Text(f"    {command.why}", style="dim"), highlight=False)


def _moved(console: Console, finding: Finding, near: Window | None) -> None:
    named = movers(near, finding, limit=8) if near else finding.top_metrics[:8]
    if not named:
        return
    _title(console, "What moved first")
    names = [clean(m.metric, 60) for m in named]
    around = [_around(near, m.metric, m.step) for m in named]
    steps = [f"{m.step:,}" for m in named]
    score = ["score", *(score_words(m.score) for m in named)]
    before, then = ([head, *cells] for head, cells in zip(
        ("before", "then"), zip(*around, strict=True), strict=True
    ))  # fmt: skip
    room = console.width - max(len(t) for t in ("step", *steps)) - 2
    n, left = fitting([score, then, before], names, room, 2)
    columns = [score, before, then] if n == 3 else [score, then][:n]
    bars = min(32, left) if left >= _BARS else 0
    width = max(min(name_width(names), room - 2), 1)
    grid = Table(box=None, padding=(0, 1, 0, 1), header_style="dim")
    grid.add_column("step", justify="right", no_wrap=True)
    grid.add_column("metric", width=width)
    for column in columns:
        grid.add_column(column[0], justify="right", no_wrap=True)
    if bars:
        grid.add_column("", no_wrap=True)
    for i, m in enumerate(named):
        cells = [steps[i], folded(names[i], width), *(column[i + 1] for column in columns)]
        grid.add_row(*(Text(c) for c in (*cells, *_bar(near, m.metric, bars))))
    console.print(grid)


def _bar(near: Window | None, name: str, width: int) -> tuple[str, ...]:
    if not width:
        return ()
    known = near is not None and name in near.table.names
    return (sparkline(near.table.column(name)[near.shown :], width) if near and known else "",)


def _around(near: Window | None, name: str, step: int) -> tuple[str, str]:
    """Value of a metric in the row before `step` and at it."""
    row = near.row_of(step) if near else None
    if near is None or row is None or name not in near.table.names:
        return "", ""
    values = np.asarray(near.table.column(name), np.float64)
    return number(float(values[row - 1])) if row else "", number(float(values[row]))


def _where(
    console: Console, report: DetectionReport, finding: Finding, near: Window | None
) -> None:
    lines: list[str] = []
    batch = batch_at(report.table, finding.step) if report.table is not None else None
    if batch:
        lines.append("Batch: " + "; ".join(f"{k.lower()} {v}" for k, v in batch.rows))
    found = broken(near, report)[:6] if near else ()
    lines += [f"Step {c.step:,}, {c.name}: {c.before} → {c.at}; {c.meaning}" for c in found]
    _lines(console, "Where", lines)


def _others(console: Console, report: DetectionReport) -> None:
    _lines(console, "Other findings", list(_other_lines(report)))


def _other_lines(report: DetectionReport) -> Iterator[str]:
    found = list(other_findings(report))
    for f in found[:8]:
        yield f"{f.severity}, step {f.step:,}: {finding_words(f)} (confidence {f.confidence:.2f})"
    if len(found) > 8:
        yield f"and {plural(len(found) - 8, 'more finding')}"
