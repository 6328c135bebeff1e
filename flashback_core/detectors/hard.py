"""Hard signals: what is wrong whatever came before, with no baseline and from the first step on.

One non-finite entry is enough, no votes: a single NaN in one tensor moves two or three statistics
at most. Steps that a gradient scaler skipped are its healthy work and count only when they do not
end.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from flashback_core.bounds import bounded
from flashback_core.detectors.declared import Declared
from flashback_core.detectors.nonfinite import non_finite
from flashback_core.detectors.signals import Bools, certain, column_is, first_run
from flashback_core.report.model import Finding
from flashback_core.table import StepTable

__all__ = ["hard_findings"]

SKIP_LOOP = 20
"""Skipped steps in a row that search for no loss scale any more: 2**16 is 1 after 16 of them."""
LIVE = 16
"""Updates in a row after which an update of exactly zero means that a group stopped."""


def hard_findings(table: StepTable, events: Declared) -> list[Finding]:
    """Every hard signal of `table`, each once, at the step where it began."""
    signals = (
        non_finite(table),
        _skip_loop(table),
        _zero_loss(table),
        _stopped(table, events),
        _started(table, events),
    )
    return [finding for found in signals for finding in found]


def _skip_loop(table: StepTable) -> Iterator[Finding]:
    skipped = column_is(table, "exact:step_skipped", 1)
    start = first_run(skipped, SKIP_LOOP)
    if start is not None:
        step = int(table.steps[start])
        text = f"{SKIP_LOOP} steps in a row were skipped from step {step} on: nothing is learnt."
        yield certain(step, "skip_loop", text, metrics={"exact:step_skipped": step})


def _zero_loss(table: StepTable) -> Iterator[Finding]:
    """A loss of exactly 0.0 right after one that was not small: filtered NaN, or no targets."""
    if "loss" not in table:
        return
    loss = bounded(table.column("loss"))
    for row in np.flatnonzero(loss == 0.0):
        before = loss[max(row - 8, 0) : row]
        before = before[np.isfinite(before)]
        if len(before) >= 4 and np.median(before) > 1e-2 and np.min(np.abs(before)) > 1e-4:
            step = int(table.steps[row])
            text = (
                f"The loss was exactly 0.0 at step {step} after {np.median(before):.4g}: a NaN "
                "that was filtered out, or a batch without targets."
            )
            yield certain(step, "loss_zero", text, metrics={"loss": step})
            return


def _stopped(table: StepTable, events: Declared) -> Iterator[Finding]:
    """Groups whose update is exactly zero from some step on although the learning rate is not."""
    excused = column_is(table, "exact:step_skipped", 1) | column_is(table, "lr", 0)
    excused |= _spoilt(table)
    found: dict[int, list[str]] = {}
    for name in table.names:
        if name.startswith("group:") and name.endswith((":update_norm", ":grad_norm")):
            values = np.asarray(table.column(name), np.float64)[~excused]
            zero = values == 0
            start = first_run(zero & _was_live(~zero), 2)
            if start is not None:
                row = int(np.flatnonzero(~excused)[start])
                found.setdefault(row, []).append(name)
    for row, names in sorted(found.items()):
        if events.near(row, events.freezing):
            continue
        step, groups = int(table.steps[row]), sorted({n.split(":")[1] for n in names})
        what = "gradient" if any("grad" in n for n in names) else "update"
        text = f"The {what} of {', '.join(groups)} was exactly zero from step {step} on."
        yield certain(step, f"zero_{what}", text, metrics=dict.fromkeys(names, step))
        return


def _spoilt(table: StepTable) -> Bools:
    """Rows with NaN or infinite gradients: what is left of a norm there is no zero gradient."""
    if "nonfinite" not in table:
        return np.zeros(len(table), dtype=bool)
    return np.asarray(np.nan_to_num(np.asarray(table.column("nonfinite"), np.float64)) > 0)


def _started(table: StepTable, events: Declared) -> Iterator[Finding]:
    """Groups that were still from the first step on and begin to move: thawed, a change."""
    skipped = column_is(table, "exact:step_skipped", 1)
    found: dict[int, list[str]] = {}
    for name in table.names:
        if name.startswith("group:") and name.endswith(":update_norm"):
            values = np.asarray(table.column(name), np.float64)
            moves = np.flatnonzero(values > 0)
            row = int(moves[0]) if len(moves) else 0
            if np.count_nonzero(~skipped[:row]) >= LIVE:
                found.setdefault(row, []).append(name)
    for row, names in sorted(found.items()):
        if not events.near(row, events.freezing):
            step, groups = int(table.steps[row]), ", ".join(n.split(":")[1] for n in names)
            text = f"The weights of {groups} moved for the first time at step {step}."
            metrics = dict.fromkeys(names, step)
            yield certain(step, "unfreeze", text, metrics=metrics, severity="change")


def _was_live(moving: Bools) -> Bools:
    """Rows before which the last `LIVE` rows that moved came without a break."""
    rows = np.arange(len(moving))
    last_still = np.maximum.accumulate(np.where(moving, -1, rows))
    streak = rows - last_still
    best = np.maximum.accumulate(streak) if len(streak) else streak
    return np.asarray(best >= LIVE)
