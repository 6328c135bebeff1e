"""Merging: several signs of one fault become one finding, the most certain one first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from flashback_core.report.model import Finding

__all__ = ["SAME", "joined", "merged", "merged_certain", "with_learning"]

SAME = 2
"""Findings whose steps are this close are one finding."""
TOP = 8
OUTCOMES = ("divergence", "gradient_explosion")
"""Kinds that a fault ends in."""


def merged(certain: Sequence[Finding], statistical: Finding | None) -> list[Finding]:
    """`certain` findings and a statistical one, which joins a bad one of nearly the same step."""
    findings = list(certain)
    if statistical is None:
        return findings
    for i, other in enumerate(findings):
        if other.severity == "bad" and abs(statistical.step - other.step) <= SAME:
            findings[i] = joined(other, statistical)
            return findings
    return [*findings, statistical]


def merged_certain(findings: Sequence[Finding]) -> list[Finding]:
    """Certain findings of one step and severity as one, the first rule's kind first."""
    out: list[Finding] = []
    for finding in sorted(findings, key=lambda f: f.step):
        same = [
            i for i, f in enumerate(out) if (f.step, f.severity) == (finding.step, finding.severity)
        ]
        if same:
            out[same[0]] = joined(out[same[0]], finding)
        else:
            out.append(finding)
    return out


def with_learning(
    findings: Sequence[Finding], learning: Sequence[Finding], *, certain: bool
) -> list[Finding]:
    """`findings` and those on the loss alone, which are the last resort.

    A divergence is the outcome of a fault: where something bad was found before the loss was lost,
    it is further evidence for that. That nothing was learnt is said only where nothing certain
    explains it.
    """
    out = list(findings)
    for finding in learning:
        causes = [i for i, f in enumerate(out) if f.severity == "bad"]
        causes = [i for i in causes if out[i].step <= finding.interval[1]]
        if finding.kind in OUTCOMES and causes:
            first = min(causes, key=lambda i: out[i].step)
            out[first] = joined(out[first], finding)
        elif not (finding.kind == "never_learns" and certain):
            out.append(finding)
    return out


def joined(finding: Finding, more: Finding) -> Finding:
    """`finding` with the evidence and the metrics of `more` behind its own."""
    seen = {m.metric for m in finding.top_metrics}
    metrics = (m for m in more.top_metrics if m.metric not in seen)
    return replace(
        finding,
        evidence=(*finding.evidence, *more.evidence),
        top_metrics=(*finding.top_metrics, *metrics)[:TOP],
        confidence=max(finding.confidence, more.confidence),
    )
