"""The middle of the page: charts, and the tables that say the same in numbers."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from flashback_core.bounds import bounded, whole
from flashback_core.report import chart_maps, chart_multiples, chart_timeline
from flashback_core.report.batch import batch_at
from flashback_core.report.charts import lead
from flashback_core.report.checks import broken
from flashback_core.report.events import event_words, told
from flashback_core.report.figure import figure
from flashback_core.report.markup import esc, explained, metric_name, section, table
from flashback_core.report.model import DetectionReport, Finding
from flashback_core.report.series import OneOptimizer, one_optimizer
from flashback_core.report.spec import HeatMap, Panel
from flashback_core.report.text import clean, number, plural, score_words
from flashback_core.report.totals import totals
from flashback_core.report.window import Passing, Window
from flashback_core.table import StepTable

__all__ = ["chart_sections"]

_TABLED = 12
_ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth")


def chart_sections(report: DetectionReport) -> str:
    """Every section that needs the run itself; empty for a report without its table."""
    if report.table is None or len(report.table) == 0:
        return ""
    finding = lead(report)
    series = one_optimizer(report.table, finding)
    run = Passing(series, finding)
    whole = chart_maps.surprise_map(run, report)  # reads every metric, so that the window has them
    near = run.window()
    parts = [
        _moved(near, finding) if near and finding else "",
        _timeline(run, report, whole, _whose(series)),
        _surprise(run, whole, near, finding),
        _histograms(run, report, near, finding),
        _batch(run, finding),
        _checks(near, report),
    ]
    return "".join(parts)


def _moved(near: Window, finding: Finding) -> str:
    named = chart_multiples.movers(near, finding, limit=_TABLED)
    panels = chart_multiples.moved_first(near, finding)
    if not named:
        return ""
    rows = [(str(i + 1), metric_name(m.metric), f"{m.step:,}", score_words(m.score),
             *_values(near, m.metric, near.row_of(m.step)))
            for i, m in enumerate(named)]  # fmt: skip
    head = (
        "",
        "Metric",
        "Moved at step",
        _score_head(),
        "Usual before",
        "Just before",
        "When it moved",
    )
    found = table(head, rows, numeric=(0, 2, 3, 4, 5, 6))
    figures = f'<div class="multiples">{"".join(figure(p) for p in panels)}</div>' if panels else ""
    figures += _followers(panels, finding)
    more = len(finding.top_metrics) - len(named)
    tail = f'<p class="note">{plural(more, "more metric")} in report.json.</p>' if more > 0 else ""
    lead_words = (
        "In the order in which they moved. The green band is where the steps before say the values "
        "should lie (their median and 4 robust deviations on both sides)."
    )
    return section("moved", "What moved first", figures + found + tail, lead=explained(lead_words))


def _followers(panels: tuple[Panel, ...], finding: Finding) -> str:
    """Which of the charts show what the finding itself does not name."""
    n = chart_multiples.n_named(panels, finding)
    if n == len(panels):
        return ""
    which = f"Charts from the {_ORDINALS[n]} on" if n else "The charts"
    words = (
        f"{which} are not part of the finding: they show what next lay "
        f"{chart_multiples.MOVED:.0f} or more deviations off the steps before."
    )
    return f'<p class="note gap">{words}</p>'


def _score_head() -> str:
    meaning = (
        "How far off, in the detector's own units (robust deviations unless it says otherwise)"
    )
    return f'<abbr title="{esc(meaning, 200)}">Score</abbr>'


def _values(near: Window, name: str, row: int | None) -> tuple[str, str, str]:
    """Usual value before the finding, the one before `row`, and the one at it."""
    if name not in near.table or row is None:
        return "", "", ""
    column = np.asarray(near.table.column(name))
    if name.endswith("_hash"):
        texts = [f"{int(v) % 2**64:016x}" for v in whole(column, 0)]
        return "", texts[row - 1] if row else "", texts[row]
    values = bounded(column)
    before = values[max(0, near.row - 64) : near.row]
    before = before[np.isfinite(before)]
    usual = number(float(np.median(before))) if len(before) else ""
    return usual, number(float(values[row - 1])) if row else "", number(float(values[row]))


def _whose(series: StepTable) -> str:
    """Which rows are drawn, where a run has several optimizers."""
    if not isinstance(series, OneOptimizer):
        return ""
    others = plural(series.others, "other optimizer")
    return f"Charts show the rows of optimizer {series.optimizer}; {others} left out."


def _timeline(run: StepTable, report: DetectionReport, whole: HeatMap | None, whose: str) -> str:
    strip = chart_maps.strip_of(whole) if whole and np.isfinite(whole.values).any() else None
    stack = chart_timeline.timeline(run, report, strip)
    if stack is None:
        return ""
    return section(
        "timeline", "The whole run", figure(stack) + _event_list(run) + _totals(run), lead=whose
    )


def _totals(run: StepTable) -> str:
    rows = "".join(
        f'<tr><th scope="row">{esc(label)}</th><td>{esc(words, 200)}</td></tr>'
        for label, words in totals(run)
    )
    return f'<table class="facts gap">{rows}</table>' if rows else ""


def _event_list(run: StepTable) -> str:
    """Events as words, for those who cannot use the marks."""
    shown = told(run.events)
    if not shown:
        return ""
    items = "".join(f"<li>{esc(event_words(e), 200)}</li>" for e in shown[:200])
    more = f"<li>and {len(shown) - 200:,} more</li>" if len(shown) > 200 else ""
    return (
        f"<details><summary>{plural(len(shown), 'event')} in words</summary>"
        f'<ul class="plain">{items}{more}</ul></details>'
    )


def _surprise(
    run: StepTable, whole: HeatMap | None, near: Window | None, finding: Finding | None
) -> str:
    maps = [chart_maps.surprise_near(near, finding)] if near and finding else []
    if not maps or len(run) > len(near.table if near else ()):
        maps.append(whole)
    known = [m for m in maps if m is not None and np.isfinite(m.values).any()]
    body = "".join(f'<div class="gap">{figure(m, legend=m is known[-1])}</div>' for m in known)
    lead_words = (
        "Each cell is the metric of that part which lies furthest from the steps before it, in "
        "robust deviations: orange above, blue below. This is for looking; the detector has scores "
        "of its own."
    )
    return section(
        "surprise",
        "Where it shows" if near else "How usual each part was",
        body,
        lead=explained(lead_words),
    )


def _histograms(
    run: StepTable, report: DetectionReport, near: Window | None, finding: Finding | None
) -> str:
    if near and finding:
        maps = [chart_maps.histogram_near(near, finding, kind) for kind in ("grad", "update")]
    else:
        maps = [chart_maps.histogram_map(run, report, kind) for kind in ("grad", "update")]
    figures = "".join(figure(m) for m in maps if m is not None and np.isfinite(m.values).any())
    if not figures:
        return ""
    lead_words = (
        "How large the entries of the gradients and of the updates were: each column is a step, "
        "each row a range of sizes, each a factor of four above the one below it."
    )
    return section(
        "sizes",
        "Sizes of gradients and updates",
        f'<div class="pair">{figures}</div>',
        lead=lead_words,
    )


def _batch(run: StepTable, finding: Finding | None) -> str:
    batch = batch_at(run, finding.step) if finding else None
    if batch is None:
        return ""
    rows = "".join(
        f'<tr><th scope="row">{esc(k)}</th><td>{esc(v, 300)}</td></tr>' for k, v in batch.rows
    )
    again = (
        "This batch also came at other steps." if batch.seen_at
        else ("No other step had a batch with this fingerprint." if batch.fingerprint else "")
    )  # fmt: skip
    title = f"The batch of step {batch.step:,}"
    return section("batch", title, f'<table class="facts">{rows}</table>', lead=esc(again))


def _checks(near: Window | None, report: DetectionReport) -> str:
    found = broken(near, report) if near else ()
    rows = [
        (f"{c.step:,}", metric_name(c.name), esc(c.before, 60), esc(c.at, 60), esc(c.meaning, 200))
        for c in found[:40]
    ]
    if not rows:
        return ""
    head = ("Step", "Check", "Before", "At the step", "What it means")
    return section(
        "checks",
        "Exact checks that broke",
        table(head, rows, numeric=(0,)),
        lead="These are certain; they need no statistics.",
    )


def recorded_parts(run: StepTable) -> Iterator[tuple[str, str]]:
    """Names of the model's parts and their parameters, from the event ``groups``."""
    told_of = [e for e in run.events if e.get("event") == "groups"]
    for event in told_of[-1:]:  # every recording says it again
        for group, parameters in dict(event.get("groups", {})).items():
            if not parameters:
                continue  # a group of the schema that this model does not have
            total = sum(int(p.get("numel", 0)) for p in parameters)
            yield (
                clean(group, 40),
                f"{plural(len(parameters), 'tensor')}, {plural(total, 'number')}",
            )
