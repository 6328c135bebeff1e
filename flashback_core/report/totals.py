"""What the records of a whole run say, good or bad, in sentences."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from flashback_core.bounds import whole
from flashback_core.report.text import number, plural
from flashback_core.table import StepTable

__all__ = ["totals"]


def totals(table: StepTable) -> tuple[tuple[str, str], ...]:
    """Label and sentence of everything that the records can say of the whole run."""
    if len(table) == 0:
        return ()
    return (*_loss(table), *_nonfinite(table), *_flags(table), *_batches(table), *_config(table))


def _loss(table: StepTable) -> Iterator[tuple[str, str]]:
    if "loss" not in table.names:
        return
    loss = np.asarray(table.column("loss"), np.float64)
    finite = np.isfinite(loss)
    if not finite.any():
        yield "Loss", "never a finite number"
        return
    best = int(np.nanargmin(np.where(finite, loss, np.nan)))
    lowest = number(float(loss[best]))
    first, last = number(float(loss[0])), number(float(loss[-1]))
    yield (
        "Loss",
        f"{first} at first, {last} at last; lowest {lowest} at step {int(table.steps[best]):,}",
    )


def _nonfinite(table: StepTable) -> Iterator[tuple[str, str]]:
    if "nonfinite" in table.names:
        yield (
            "NaN or infinite gradients",
            _rows_with(table, np.asarray(table.column("nonfinite")) > 0),
        )
    updates = [n for n in table.names if n.endswith(":update_nonfinite")]
    if updates:
        bad = np.zeros(len(table), np.bool_)
        for name in updates:
            bad |= np.asarray(table.column(name)) > 0
        yield "NaN or infinite updates", _rows_with(table, bad)


def _flags(table: StepTable) -> Iterator[tuple[str, str]]:
    for name, label in (
        ("step_skipped", "Skipped updates"),
        ("outside", "Writes to weights or state outside the optimizer"),
    ):
        if f"exact:{name}" in table.exact_names:
            yield label, _rows_with(table, np.asarray(table.column(f"exact:{name}")) > 0)


def _batches(table: StepTable) -> Iterator[tuple[str, str]]:
    if "exact:batch_hash" not in table.exact_names:
        return
    hashes = whole(table.column("exact:batch_hash"), 0)
    known = hashes[hashes != 0]
    if len(known):
        again = int((np.diff(np.sort(known)) == 0).sum())
        words = "none" if again == 0 else plural(again, "repeat")
        yield "Batches that came again", f"{words} among {plural(len(known), 'batch', 'batches')}"


def _config(table: StepTable) -> Iterator[tuple[str, str]]:
    if "exact:config_hash" not in table.exact_names:
        return
    hashes = whole(table.column("exact:config_hash"), 0)
    if (hashes != 0).any():
        changed = (hashes[1:] != hashes[:-1]) & (hashes[1:] != 0) & (hashes[:-1] != 0)
        yield "Changes of the configuration", _rows_with(table, np.concatenate([[False], changed]))


def _rows_with(table: StepTable, bad: np.ndarray) -> str:
    rows = np.flatnonzero(bad)
    if not len(rows):
        return f"none in {plural(len(table), 'step')}"
    first, last = int(table.steps[rows[0]]), int(table.steps[rows[-1]])
    where = f"first at step {first:,}" + (f", last at step {last:,}" if last > first else "")
    return f"{plural(len(rows), 'step')}, {where}"
