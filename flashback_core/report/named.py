"""Metrics that certain findings name, anywhere in the run: each with its value before and then."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np

from flashback_core.report.check import Check
from flashback_core.report.invariants import row_before
from flashback_core.report.kinds import finding_words
from flashback_core.report.model import DetectionReport, Finding, MetricScore
from flashback_core.report.text import CERTAIN_SCORE, clean, number
from flashback_core.table import StepTable

__all__ = ["named_values"]

_OF_ONE = 3
"""Metrics of one finding that are listed."""
_COLUMNS = 16
"""Columns that are read for this, whatever the number of findings."""
_TOLD = {"exact:outside", "exact:config_hash", "exact:params_hash", "exact:state_hash"}
"""Fields whose value says little, and whose rows other checks make under other names."""


def named_values(report: DetectionReport, found: Collection[Check]) -> Iterator[Check]:
    """Values of what certain findings name and no check of `found` shows.

    Args:
        report: All findings, and the run.
        found: Checks that are listed already.
    """
    table = report.table
    if table is None:
        return
    shown = {(c.step, c.name) for c in found}
    steps, columns = {c.step for c in found}, set[str]()
    for finding, m in _certain(report):
        told = m.metric in _TOLD or finding.kind == "nonfinite"
        if (m.step, clean(m.metric)) in shown or (told and m.step in steps):
            continue
        columns.add(m.metric)
        if m.metric in table and len(columns) <= _COLUMNS:
            shown.add((m.step, clean(m.metric)))
            yield from _values(table, m, finding)


def _certain(report: DetectionReport) -> Iterator[tuple[Finding, MetricScore]]:
    for finding in report.findings:
        if finding.severity == "info":
            continue
        for m in finding.top_metrics[:_OF_ONE]:
            of_rate = m.metric == "lr" and finding.kind.startswith("lr_")
            if m.score >= CERTAIN_SCORE or of_rate:
                yield finding, m


def _values(table: StepTable, named: MetricScore, finding: Finding) -> Iterator[Check]:
    row = int(np.searchsorted(table.steps, named.step))
    if row >= len(table) or table.steps[row] != named.step:
        return
    values = table.column(named.metric)
    before = row_before(table, row)
    yield Check(
        step=named.step, name=clean(named.metric),
        before="no step before" if before is None else _plain(named.metric, values[before]),
        at=_plain(named.metric, values[row]), meaning=finding_words(finding),
    )  # fmt: skip


def _plain(name: str, value: np.generic) -> str:
    if name.endswith("_hash"):
        return f"{int(value) % 2**64:016x}"
    return number(float(value))
