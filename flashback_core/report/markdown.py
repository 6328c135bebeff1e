"""The report as Markdown, for GitHub, MLflow notes and chats."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Sequence

import numpy as np

from flashback_core.report.advice import commands, look_at
from flashback_core.report.batch import batch_at
from flashback_core.report.causes import causes_line
from flashback_core.report.chart_multiples import movers
from flashback_core.report.charts import lead, window_of
from flashback_core.report.checks import broken
from flashback_core.report.facts import facts
from flashback_core.report.kinds import finding_words
from flashback_core.report.model import DetectionReport, Finding
from flashback_core.report.sparkline import sparkline
from flashback_core.report.text import clean, score_words
from flashback_core.report.unseen import unseen
from flashback_core.report.verdict import confidence_meaning, other_findings, verdict
from flashback_core.report.window import Window

__all__ = ["to_markdown"]


def words(value: str, limit: int = 600) -> str:
    """A sentence for people: its punctuation stays readable, its markup does not work."""
    text = html.escape(clean(value, limit), quote=False)
    text = re.sub(r"([\\`*_\[\]#|~$])", r"\\\1", text)
    return re.sub(
        r"(?i)\b(https?|ftp|mailto|javascript|data|www)([:.])", r"\1&#8203;\2", text
    ).replace("@", "&#64;")


_STAND_INS = str.maketrans({"|": "¦", "`": "'", "<": "‹", ">": "›"})


def inline_code(value: object, limit: int = 120) -> str:
    """`value` in a code span that it cannot leave, also inside a table.

    The four characters that could end it in one reader or another are replaced by look-alikes.
    """
    text = clean(value, limit).translate(_STAND_INS)
    return f"`{text}`" if text.strip() else "(no name)"


def to_markdown(report: DetectionReport) -> str:
    """`report` as Markdown."""
    finding = lead(report)
    near = window_of(report)
    blocks = [
        *_head(report, finding),
        *_moved(finding, near),
        *_evidence(report, finding),
        *_exact(near, report),
        *_others(report),
        *_now(report, finding),
        *_unseen(report),
        *_facts(report),
    ]
    return "\n\n".join(blocks) + "\n"


def _head(report: DetectionReport, finding: Finding | None) -> Iterator[str]:
    said = verdict(report)
    yield f"## {said.sign}: {words(said.headline)}"
    causes = causes_line(finding) if finding else ""
    sentences = (*said.sentences, *([causes] if causes else []), *_batch(report, finding))
    yield "\n".join(f"- {words(s)}" for s in sentences)


def _batch(report: DetectionReport, finding: Finding | None) -> Iterator[str]:
    batch = batch_at(report.table, finding.step) if report.table is not None and finding else None
    if batch:
        yield "The batch: " + "; ".join(f"{k.lower()} {v}" for k, v in batch.rows) + "."


def _moved(finding: Finding | None, near: Window | None) -> Iterator[str]:
    if finding is None:
        return
    named = movers(near, finding, limit=10) if near else finding.top_metrics[:10]
    if not named:
        return
    rows = [
        (inline_code(m.metric), f"{m.step:,}", score_words(m.score), _spark(near, m.metric))
        for m in named
    ]
    yield "### What moved first"
    yield _table(("Metric", "Step", "Score", "Round the step"), rows)


def _spark(near: Window | None, name: str) -> str:
    if near is None or name not in near.table.names:
        return ""
    return sparkline(np.asarray(near.table.column(name))[near.shown :], 24)


def _evidence(report: DetectionReport, finding: Finding | None) -> Iterator[str]:
    if finding is None:
        return
    if finding.evidence:
        yield "### Evidence"
        yield "\n".join(f"- {words(e)}" for e in finding.evidence[:30])
    yield words(confidence_meaning(report))


def _exact(near: Window | None, report: DetectionReport) -> Iterator[str]:
    found = broken(near, report) if near else ()
    if found:
        yield "### Exact checks that broke"
        rows = [
            (f"{c.step:,}", inline_code(c.name), words(c.before), words(c.at), words(c.meaning))
            for c in found[:20]
        ]
        yield _table(("Step", "Check", "Before", "At the step", "What it means"), rows)


def _others(report: DetectionReport) -> Iterator[str]:
    found = list(other_findings(report))[:30]
    if found:
        yield "### Other findings"
        rows = [
            (f"{f.step:,}", f.severity, words(finding_words(f)), f"{f.confidence:.2f}")
            for f in found
        ]
        yield _table(("Step", "Weight", "What it looks like", "Confidence"), rows)


def _now(report: DetectionReport, finding: Finding | None) -> Iterator[str]:
    found = commands(report, finding)
    if not found:
        return
    yield "### What to do now"
    if finding and finding.severity == "bad" and look_at(finding):
        yield words(look_at(finding))
    for command in found:
        fence = "`" * max(3, 1 + max((len(t) for t in re.findall(r"`+", command.text)), default=0))
        yield f"{words(command.why)}:\n\n{fence}{command.language}\n{command.text}\n{fence}"


def _unseen(report: DetectionReport) -> Iterator[str]:
    found = unseen(report.table)
    if found:
        yield "### What could not be seen"
        yield "\n".join(f"- **{u.what}**: {words(u.consequence)} {words(u.how)}" for u in found)


def _facts(report: DetectionReport) -> Iterator[str]:
    rows = [(words(k), words(v)) for k, v in facts(report)]
    table = _table(("Fact", "Value"), rows)
    yield f"<details><summary>Facts of this run</summary>\n\n{table}\n\n</details>"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
