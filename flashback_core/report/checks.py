"""Exact checks round a finding: what is certain without statistics, before and at the step."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from flashback_core.report.check import Check
from flashback_core.report.events import resumed_rows
from flashback_core.report.invariants import broken_invariants
from flashback_core.report.metric_words import split_metric
from flashback_core.report.model import DetectionReport
from flashback_core.report.named import named_values
from flashback_core.report.surprise import lost_rows
from flashback_core.report.text import clean, number, plural
from flashback_core.report.window import Window

__all__ = ["Check", "broken"]

_COUNTS = 3
"""Counts of NaN and infinity that are listed of one step."""


def broken(window: Window, report: DetectionReport) -> tuple[Check, ...]:
    """Exact checks that broke from the finding on, first step first.

    Args:
        window: The rows round the finding that the report is about.
        report: All findings: what they name elsewhere in the run is listed too.
    """
    found = [
        *broken_invariants(window, report),  # a write or a setting comes before what it leads to
        *_nonfinite(window),
        *_broken_values(window),
        *_skipped(window),
        *_still(window),
    ]
    found += named_values(report, found)
    return tuple(sorted(found, key=lambda c: c.step))


def _first(window: Window, bad: np.ndarray) -> int | None:
    """First row from the finding on (one row of grace before it) where `bad` holds."""
    start = max(0, window.row - 1)
    rows = np.flatnonzero(bad[start:])
    return start + int(rows[0]) if len(rows) else None


def _step(window: Window, row: int) -> int:
    return int(window.table.steps[row])


def _nonfinite(window: Window) -> Iterator[Check]:
    """Counts of NaN and infinity that rise from zero, the first few of each step."""
    rose: dict[int, list[str]] = {}
    for name in window.table.names:
        if split_metric(name)[1] not in {"nonfinite", "update_nonfinite"}:
            continue
        values = np.asarray(window.table.column(name))
        row = _first(window, values > 0)
        if row is not None and (row == 0 or not values[row - 1] > 0):
            rose.setdefault(row, []).append(name)
    for row, names in rose.items():
        for i, name in enumerate(names[:_COUNTS]):
            more = len(names) - _COUNTS if i == _COUNTS - 1 else 0
            tail = f"; {plural(more, 'more count')} rose at this step" if more > 0 else ""
            yield _of_values(window, name, row, f"entries that are NaN or infinite{tail}")


def _broken_values(window: Window) -> Iterator[Check]:
    """Metrics that are no numbers any more, one line for all that broke at the same step."""
    broke: dict[int, list[str]] = {}
    fresh = resumed_rows(window.table)
    for name in window.table.names:
        values = window.table.column(name)
        bad = lost_rows(values)
        bad[fresh[np.isnan(values[fresh])]] = False
        row = _first(window, bad)
        if row is not None and not (row and bad[:row].any()):
            broke.setdefault(row, []).append(name)
    for row, names in broke.items():
        others = f"; so is {plural(len(names) - 1, 'other metric')}" if len(names) > 1 else ""
        others = others.replace("so is", "so are") if len(names) > 2 else others
        yield _of_values(window, names[0], row, f"the value itself is no finite number{others}")


def _of_values(window: Window, name: str, row: int, meaning: str) -> Check:
    values = window.table.column(name)
    before = number(float(values[row - 1])) if row else "no step before"
    return Check(
        step=_step(window, row),
        name=clean(name),
        before=before,
        at=number(float(values[row])),
        meaning=meaning,
    )


def _exact(window: Window, name: str) -> np.ndarray | None:
    column = f"exact:{name}"
    return window.table.column(column) if column in window.table.exact_names else None


def _skipped(window: Window) -> Iterator[Check]:
    flags = _exact(window, "step_skipped")
    if flags is None:
        return
    row = _first(window, flags > 0)
    if row is not None:
        n = int((flags[row:] > 0).sum())
        yield Check(
            step=_step(window, row),
            name="exact:step_skipped",
            before="applied",
            at="skipped",
            meaning=f"the update was not applied; {plural(n, 'skipped step')} in the steps shown",
        )


def _still(window: Window) -> Iterator[Check]:
    """Groups whose update becomes exactly zero and had not been so before."""
    flags = _exact(window, "step_skipped")
    spoilt = _spoilt(window)
    for name in window.table.names:
        group, quantity = split_metric(name)
        if quantity != "update_norm" or window.row == 0:
            continue
        values = np.asarray(window.table.column(name))
        zero = (values == 0) & ((flags == 0) if flags is not None else True)
        row = _first(window, zero & ~spoilt)
        if row is None or row == 0 or (values[:row] == 0).any():
            continue
        part = clean(group, 40) or "whole model"
        yield Check(
            step=_step(window, row),
            name=clean(name),
            before=number(float(values[row - 1])),
            at="0",
            meaning=f"not one weight of {part} moved",
        )


def _spoilt(window: Window) -> np.ndarray:
    """Rows with updates that are no numbers: norms of what is left say nothing there."""
    spoilt = np.zeros(len(window.table), np.bool_)
    for name in window.table.names:
        if split_metric(name)[1] == "update_nonfinite":
            spoilt |= np.asarray(window.table.column(name)) > 0
    return spoilt
