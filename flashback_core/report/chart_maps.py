"""Heat maps: surprise by part of the model and step, and histograms over steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from flashback_core.bounds import bounded
from flashback_core.report.events import resumed_rows
from flashback_core.report.metric_words import split_metric
from flashback_core.report.model import DetectionReport, Finding
from flashback_core.report.spec import HeatMap, Rule
from flashback_core.report.surprise import block_surprise, row_surprise
from flashback_core.report.text import clean, number
from flashback_core.report.window import Window
from flashback_core.schema import N_BINS
from flashback_core.table import StepTable

__all__ = ["histogram_map", "histogram_near", "strip_of", "surprise_map", "surprise_near"]

_PARTS_DRAWN = 40
COLUMNS = 160
"""Columns of a map of a whole run."""
Floats = npt.NDArray[np.float64]

_PARTS = {
    "loss": "loss",
    "lr": "learning rate",
    "hist_grad": "gradient sizes",
    "hist_update": "update sizes",
    "step_wall_ms": "time per step",
}
_ASIDE = ("gradient sizes", "update sizes", "time per step")
"""Parts that are far off quickly and say little of it; they have rows of their own only."""


def part_of(name: str) -> str:
    """The part of the run that a metric speaks of: a group, the loss or the whole model."""
    group, quantity = split_metric(name)
    if group in _PARTS:
        return _PARTS[group]
    if group:
        return clean(group, 24)
    if quantity in _PARTS:
        return _PARTS[quantity]
    return "batch" if quantity.startswith("batch_") else "whole model"


@dataclass
class _Rows:
    """The strongest surprise of each part, metric by metric."""

    columns: int
    values: dict[str, Floats] = field(default_factory=dict)
    leads: dict[str, npt.NDArray[np.int64]] = field(default_factory=dict)
    words: list[str] = field(default_factory=list)

    def add(self, name: str, z: Floats) -> None:
        """Let the metric `name` speak where it is further off than the others of its part."""
        part = part_of(name)
        best = self.values.setdefault(part, np.full(self.columns, np.nan))
        lead = self.leads.setdefault(part, np.full(self.columns, -1, np.int64))
        wins = np.nan_to_num(np.abs(z), nan=-1.0) > np.nan_to_num(np.abs(best), nan=-1.0)
        best[wins], lead[wins] = z[wins], len(self.words)
        self.words.append(name)


def _map(rows: _Rows, edges: Floats, rules: tuple[Rule, ...], title: str, name: str) -> HeatMap:
    known = [p for p, z in rows.values.items() if np.isfinite(z).any()] or list(rows.values)
    parts = sorted(known, key=_part_order)[:_PARTS_DRAWN]
    return HeatMap(
        title=title,
        name=name,
        edges=edges,
        rows=tuple(parts),
        values=np.stack([rows.values[p] for p in parts]),
        leads=np.stack([rows.leads[p] for p in parts]),
        words=tuple(clean(w, 60) for w in rows.words),
        rules=rules,
        scale="signed",
        unit="robust deviations",
        note=_loudest(rows, parts, edges),
    )


def _part_order(part: str) -> tuple[int, str]:
    first = ("loss", "learning rate", "whole model", "batch")
    last = ("gradient sizes", "update sizes", "time per step")
    if part in first:
        return first.index(part), ""
    return (20 + last.index(part), "") if part in last else (10, "")


def _loudest(rows: _Rows, parts: Sequence[str], edges: Floats) -> str:
    parts = [p for p in parts if p not in _ASIDE] or list(parts)
    values = np.stack([rows.values[p] for p in parts])
    if not np.isfinite(values).any():
        return "Too few steps to compare any step with those before it."
    i, j = divmod(int(np.nanargmax(np.abs(values))), values.shape[1])
    lead = rows.words[int(rows.leads[parts[i]][j])]
    step = int(np.ceil(edges[j]))
    return (
        f"Furthest off: {clean(lead, 60)}, {abs(values[i, j]):.0f} deviations, at or just after "
        f"step {step:,}."
    )


def edges_of(steps: npt.NDArray[np.int64]) -> Floats:
    """Half-way points between steps, and half a step before the first and after the last."""
    middle = (steps[:-1] + steps[1:]) / 2
    gap = (
        (float(steps[1] - steps[0]) / 2, float(steps[-1] - steps[-2]) / 2)
        if len(steps) > 1
        else (0.5, 0.5)
    )
    return np.concatenate([[steps[0] - gap[0]], middle, [steps[-1] + gap[1]]])


def blocks_of(steps: npt.NDArray[np.int64], columns: int = COLUMNS) -> npt.NDArray[np.intp]:
    """First rows of at most `columns` blocks of about the same length."""
    n = len(steps)
    return np.unique(np.linspace(0, n, min(n, columns) + 1).astype(np.intp)[:-1])


def surprise_map(table: StepTable, report: DetectionReport) -> HeatMap | None:
    """Surprise of the whole run, by part of the model and stretch of steps; one pass over it.

    None where there is nothing to compare.
    """
    if not table.names or len(table) < 2:
        return None
    starts = blocks_of(table.steps)
    rows = _Rows(len(starts))
    fresh = resumed_rows(table)
    for name in table.names:
        values = _carried(table.column(name), fresh)
        rows.add(name, block_surprise(values, starts, counts=_is_bin(name)))
    rules = _rules(report)
    edges = edges_of(table.steps)[np.append(starts, len(table))]
    return _map(rows, edges, rules, "Surprise over the whole run", "surprise-run")


def surprise_near(window: Window, finding: Finding) -> HeatMap | None:
    """Surprise step by step round `finding`, by part of the model."""
    if not window.table.names:
        return None
    rows = _Rows(len(window.table) - window.shown)
    fresh = resumed_rows(window.table)
    for name in window.table.names:
        values = _carried(window.table.column(name), fresh)
        z = row_surprise(values, window.row, counts=_is_bin(name))
        rows.add(name, z[window.shown :])
    edges = edges_of(window.table.steps)[window.shown :]
    title = f"Surprise step by step round step {finding.step:,}"
    return _map(rows, edges, (_rule(finding),), title, "surprise-near")


def _carried(values: npt.NDArray[Any], fresh: npt.NDArray[np.intp]) -> npt.NDArray[Any]:
    """Values whose NaN at the first row of a recording is the value before: it is no loss."""
    if values.dtype.kind != "f" or not np.isnan(values[fresh]).any():
        return values
    lost = fresh[np.isnan(values[fresh])]
    values = values.copy()
    values[lost] = values[lost - 1]
    return values


def _is_bin(name: str) -> bool:
    return name.startswith("hist_")


def strip_of(whole: HeatMap) -> HeatMap:
    """The strongest surprise of all parts as a map of one row."""
    strength = np.nan_to_num(np.abs(whole.values), nan=-1.0)
    aside = np.isin(whole.rows, _ASIDE)
    if not aside.all():
        strength[aside] = -2.0
    best = strength.argmax(axis=0)
    columns = np.arange(strength.shape[1])
    return replace(
        whole,
        title="furthest off",
        name="surprise-strip",
        rows=("furthest off",),
        values=whole.values[best, columns][None],
        leads=None if whole.leads is None else whole.leads[best, columns][None],
        rules=(),
        note="",
    )


def _rules(report: DetectionReport) -> tuple[Rule, ...]:
    found = [f for f in report.findings if f.kind != "not_enough_data"]
    return tuple(_rule(f) for f in found[:12])


def _rule(finding: Finding) -> Rule:
    return Rule(step=finding.step, label=f"step {finding.step:,}", role=finding.severity)


def bin_label(i: int) -> str:
    """The magnitudes that bin `i` counts, see `flashback_core.schema.N_BINS`."""
    if i == 0:
        return "0 or tiny"
    return f"≥ {number(2.0 * 4.0 ** (i - 16), 2)}"


def histogram_map(table: StepTable, report: DetectionReport, kind: str) -> HeatMap | None:
    """Share of the entries in each magnitude bin over the whole run; `kind` is grad or update."""
    names = list(_bins(table.names, kind))
    if len(names) < N_BINS or len(table) < 2:
        return None
    starts = blocks_of(table.steps)
    counts = np.stack([table.column(n)[starts] for n in names]).astype(np.float64)
    edges = edges_of(table.steps)[np.append(starts, len(table))]
    rules = _rules(report)
    return _histogram(counts, edges, rules, kind, "over the whole run")


def histogram_near(window: Window, finding: Finding, kind: str) -> HeatMap | None:
    """Share of the entries in each magnitude bin step by step round `finding`."""
    names = list(_bins(window.table.names, kind))
    if len(names) < N_BINS:
        return None
    part = slice(window.shown, None)
    counts = np.stack([window.table.column(n)[part] for n in names]).astype(np.float64)
    edges = edges_of(window.table.steps)[window.shown :]
    return _histogram(counts, edges, (_rule(finding),), kind, f"round step {finding.step:,}")


def _bins(names: Sequence[str], kind: str) -> Iterator[str]:
    known = set(names)
    return (f"hist_{kind}:{i}" for i in range(N_BINS) if f"hist_{kind}:{i}" in known)


def _histogram(
    counts: Floats, edges: Floats, rules: tuple[Rule, ...], kind: str, where: str
) -> HeatMap:
    counts = np.maximum(np.nan_to_num(bounded(counts), nan=0.0, posinf=0.0, neginf=0.0), 0.0)
    total = counts.sum(axis=0)
    share = np.divide(counts, total, out=np.full_like(counts, np.nan), where=total > 1e-9)
    what = "gradients" if kind == "grad" else "updates"
    middle = _typical_bin(share)
    return HeatMap(
        title=f"Sizes of the {what} {where}",
        name=f"hist-{kind}",
        edges=edges,
        rows=tuple(bin_label(i) for i in reversed(range(N_BINS))),
        values=share[::-1],
        scale="share",
        unit=f"share of all {what}",
        rules=rules,
        note=f"Most {what} lie {middle}." if middle else "",
        row_height=11,
    )


def _typical_bin(share: Floats) -> str:
    if not np.isfinite(share).any():
        return ""
    i = int(np.argmax(np.nansum(share, axis=1)))
    low = 2.0 * 4.0 ** (i - 16)
    if i == 0:
        return f"at zero or below {number(4 * low, 2)}"
    if i == N_BINS - 1:
        return "at 0.5 or above"
    return f"between {number(low, 2)} and {number(4 * low, 2)} in size"
