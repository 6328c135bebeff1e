"""The top of the page: the verdict, the five answers, and what to do now."""

from __future__ import annotations

from collections.abc import Iterator

from flashback_core.report.advice import commands, look_at
from flashback_core.report.batch import batch_at
from flashback_core.report.causes import class_line, ranked_causes
from flashback_core.report.chart_timeline import glance
from flashback_core.report.charts import lead
from flashback_core.report.figure import figure
from flashback_core.report.kinds import finding_words
from flashback_core.report.markup import code, esc, explained, metric_name, run_text, section, table
from flashback_core.report.metric_words import metric_label
from flashback_core.report.model import DetectionReport, Finding
from flashback_core.report.series import one_optimizer
from flashback_core.report.text import ABBREVIATIONS, plural, score_words, step_span
from flashback_core.report.verdict import (
    confidence_meaning,
    false_alarm_words,
    other_findings,
    verdict,
)

__all__ = ["evidence_section", "now_section", "verdict_card"]

_SIGNS = {
    "bad": '<path d="M12 2 22.5 21H1.5Z" fill="currentColor"/>'
    '<path d="M12 9v6M12 17.2v1.6" stroke="var(--card)" stroke-width="2.4"/>',
    "good": '<circle cx="12" cy="12" r="10.5" fill="currentColor"/>'
    '<path d="m7 12.4 3.4 3.4L17 9" stroke="var(--card)" stroke-width="2.6" fill="none"/>',
    "change": '<path d="M12 1.5 22.5 12 12 22.5 1.5 12Z" fill="currentColor"/>'
    '<path d="M7 12h9m-3.6-3.8L16.4 12l-4 3.8" stroke="var(--card)" '
    'stroke-width="2.2" fill="none"/>',
    "quiet": '<circle cx="12" cy="12" r="10.5" fill="currentColor"/>'
    '<path d="M7 12h.1M12 12h.1M17 12h.1" stroke="var(--card)" stroke-width="3.4" '
    'stroke-linecap="round"/>',
}


def verdict_card(report: DetectionReport) -> str:
    """The card that answers a tired person's questions."""
    said = verdict(report)
    finding = lead(report)
    sign = f'<svg viewBox="0 0 24 24" aria-hidden="true">{_SIGNS[said.tone]}</svg>{esc(said.sign)}'
    body = _tiles(report, finding) if finding else ""
    points = "" if report.bad else _points(said.sentences)
    why = _causes(finding) + _why(finding) if report.bad and finding else ""
    if points or why:
        body += f'<div class="two"><div>{points}{why}</div>{_glance(report)}</div>'
    else:
        body += _glance(report)
    return (
        f'<section class="verdict {said.tone}" id="verdict" aria-labelledby="headline">'
        f'<div class="sign">{sign}</div><h1 id="headline">{esc(said.headline, 300)}</h1>'
        f"{body}{_first_action(report, finding)}</section>"
    )


def _glance(report: DetectionReport) -> str:
    """The loss of the whole run, small, with what was found."""
    if report.table is None or len(report.table) < 2:
        return ""
    panel = glance(one_optimizer(report.table, lead(report)), report)
    return f'<div class="glance">{figure(panel)}</div>' if panel else ""


def _points(sentences: tuple[str, ...]) -> str:
    return "<ul>" + "".join(f"<li>{explained(s)}</li>" for s in sentences) + "</ul>"


def _causes(finding: Finding) -> str:
    named = ranked_causes(finding)
    if not named:
        return ""
    items = "".join(f"<li>{esc(words)} <small>{esc(p)}</small></li>" for words, p in named)
    return f'<h2>Looks like</h2><ul>{items}</ul><p class="then">{esc(class_line(finding))}</p>'


def _why(finding: Finding) -> str:
    if not finding.evidence:
        return ""
    items = "".join(f"<li>{explained(e)}</li>" for e in finding.evidence[:3])
    more = len(finding.evidence) - 3
    words = plural(more, "more piece", "more pieces")
    tail = f'<p class="then"><a href="#evidence">{words} of evidence</a></p>'
    return f"<h2>Why</h2><ul>{items}</ul>{tail if more > 0 else ''}"


def _tiles(report: DetectionReport, finding: Finding) -> str:
    tiles = "".join(
        f"<div><dt>{label}</dt><dd>{value}</dd></div>" for label, value in _answers(report, finding)
    )
    return f'<dl class="tiles">{tiles}</dl>'


def _answers(report: DetectionReport, finding: Finding) -> Iterator[tuple[str, str]]:
    word = "First bad step" if finding.severity == "bad" else "First change"
    yield word, f"{finding.step:,}<small>{_dated(report, finding)}</small>"
    if finding.top_metrics:
        top = finding.top_metrics[0]
        far = score_words(top.score)
        unit = "" if far == "certain" else f' <abbr title="{_deviations()}">deviations</abbr>'
        score = f"{far}{unit}, at step {top.step:,}"
        yield "Moved first", f"{esc(metric_label(top.metric), 60)}<small>{score}</small>"
    batch = batch_at(report.table, finding.step) if report.table is not None else None
    if batch:
        again = f"also came at step {batch.seen_at[0]:,}" if batch.seen_at else ""
        fingerprint = batch.index is not None and batch.fingerprint
        under = again or (f"fingerprint {batch.fingerprint}" if fingerprint else "")
        yield "Batch", f"{esc(batch.words or 'known', 60)}<small>{under}</small>"
    meaning = esc(confidence_meaning(report), 400)
    width = round(100 * min(max(finding.confidence, 0.0), 1.0))
    meter = f'<span class="meter" aria-hidden="true"><i style="width:{width}%"></i></span>'
    yield (
        f'<abbr title="{meaning}">Confidence</abbr>',
        f"{finding.confidence:.2f}<small>of 1</small>{meter}",
    )


def _deviations() -> str:
    return esc(ABBREVIATIONS["robust deviations"], 300)


def _dated(report: DetectionReport, finding: Finding) -> str:
    first, last = finding.interval
    exact = (
        "dated to this one step" if first == last else f"somewhere in {step_span(finding.interval)}"
    )
    if report.last_step is None:
        return exact
    return (
        f"{exact}; the run goes on to {report.last_step:,}"
        if report.last_step > finding.step
        else exact
    )


def _first_action(report: DetectionReport, finding: Finding | None) -> str:
    where = look_at(finding) if finding and finding.severity == "bad" else ""
    if where:
        where = f"<strong>Look first:</strong> {explained(where)} "
    elif not commands(report, finding):
        return ""
    return f'<p class="then">{where}<a href="#now">What to do now</a></p>'


def now_section(report: DetectionReport) -> str:
    """Commands to copy for this finding."""
    finding = lead(report)
    found = commands(report, finding)
    body = "".join(code(c.text, c.language, c.why) for c in found)
    if not body:
        return ""
    intro = look_at(finding) if finding and finding.severity == "bad" else ""
    return section("now", "What to do now", body, lead=explained(intro) if intro else "")


def evidence_section(report: DetectionReport) -> str:
    """All the evidence, what the confidence means, and every other finding."""
    finding = lead(report)
    body = ""
    if finding and (len(finding.evidence) > 3 or not report.bad):
        body += "".join(f"<li>{explained(e)}</li>" for e in finding.evidence[:60])
        body = f'<ul class="plain">{body}</ul>' if body else ""
    if finding:
        words = " ".join(s for s in (confidence_meaning(report), false_alarm_words(report)) if s)
        body += f'<p class="lead">{explained(words, 900)}</p>'
    others = list(other_findings(report))
    if others:
        body += _others(others)
    return section(
        "evidence", "Evidence and other findings" if others else "How sure this is", body
    )


def _others(findings: list[Finding]) -> str:
    rows = [
        (
            f"{f.step:,}",
            f'<span class="tag {esc(f.severity)}">{esc(f.severity)}</span>',
            f"{esc(finding_words(f), 80)}",
            f"{f.confidence:.2f}",
            metric_name(f.top_metrics[0].metric) if f.top_metrics else "",
            run_text(f.evidence[0], 200) if f.evidence else "",
        )
        for f in findings[:100]
    ]
    more = (
        f"<p class='note'>and {len(findings) - 100:,} more in report.json</p>"
        if len(findings) > 100
        else ""
    )
    head = ("Step", "Weight", "What it looks like", "Confidence", "Moved first", "Evidence")
    return table(head, rows, numeric=(0, 3)) + more
