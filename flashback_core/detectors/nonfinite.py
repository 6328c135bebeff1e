"""Numbers that are not finite: the rule of one, and what only looks like it.

One NaN or infinite entry is enough, no votes: it moves two or three statistics at most. Steps that
a gradient scaler skipped are its healthy work. In the log of another tool a missing cell may be a
NaN that was not written, an evaluation row, or a metric that is logged now and then.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from flashback_core.detectors.signals import Bools, certain, column_is
from flashback_core.report.model import Finding
from flashback_core.table import StepTable

__all__ = ["non_finite"]

LOG_RUN = 4
"""Non-finite gradient norms in a row of a log that are more than a skipped step."""
NORMS = ("grad_norm", "grad_max", "update_norm", "update_max", "param_norm")
COUNTABLE = 1e15
"""Counts from here on are no counts of a recorder."""
REGULAR = 4
"""Values in a row after which a loss that is missing is a loss that was not finite."""


def non_finite(table: StepTable) -> Iterator[Finding]:
    """The first step with a number that is not finite; passing ones of a log as `info`."""
    skipped = column_is(table, "exact:step_skipped", 1)
    counts = [n for n in table.names if n.split(":")[-1] in ("nonfinite", "update_nonfinite")]
    by_metric = {name: _positive(table.column(name)) & ~skipped for name in counts}
    if "loss" in table:
        by_metric["loss"] = _loss_not_finite(table) & ~skipped
    norms = {n: _lost(table, n) & ~skipped for n in NORMS if n in table}
    if table.exact_names:
        by_metric |= norms
    elif norms:
        by_metric |= _settled(norms, by_metric.get("loss"))
        yield from _isolated(table, norms, by_metric)
    yield from _first_of(table, by_metric)


def _first_of(table: StepTable, by_metric: dict[str, Bools]) -> Iterator[Finding]:
    hits = np.array(list(by_metric.values()))
    if not hits.any():
        return
    row = int(np.argmax(hits.any(axis=0)))
    names = [name for name in by_metric if by_metric[name][row]]
    later = [n for n in by_metric if by_metric[n].any() and n not in names]
    order = names + sorted(later, key=lambda n: int(np.argmax(by_metric[n])))
    yield certain(
        int(table.steps[row]),
        "nonfinite",
        *(_sentence(table, name, row) for name in names[:4]),
        metrics={n: int(table.steps[int(np.argmax(by_metric[n]))]) for n in order},
    )


def _sentence(table: StepTable, name: str, row: int) -> str:
    value, step = table.column(name)[row], int(table.steps[row])
    if name.endswith("nonfinite"):
        what = "update" if "update" in name else "gradient"
        of = f" of group {name.split(':')[1]}" if name.startswith("group:") else ""
        entries = "entry was" if value == 1 else "entries were"
        count = f"{int(value)}" if value < COUNTABLE else "countless"
        lead = f"{count} {what} {entries.replace(' ', of + ' ')}"
        return f"{lead} NaN or infinite at step {step}."
    return f"{name} was {float(value)} at step {step}."


def _isolated(
    table: StepTable, norms: dict[str, Bools], settled: dict[str, Bools]
) -> Iterator[Finding]:
    """Non-finite norms of a log that pass again: most likely steps skipped by a loss scaler."""
    either = np.any(list(norms.values()), axis=0) & ~np.any(list(settled.values()), axis=0)
    if either.any():
        step, count = int(table.steps[np.argmax(either)]), int(either.sum())
        text = (
            f"The gradient norm was not finite in {count} logged rows, first at step {step}, "
            "and was finite again soon after: most likely steps that a loss scaler skipped."
        )
        yield Finding(
            step=step, interval=(step, step), kind="skipped_step", confidence=0.5,
            severity="info", evidence=(text,),
        )  # fmt: skip


def _settled(norms: dict[str, Bools], loss: Bools | None) -> dict[str, Bools]:
    """The part of `norms` that does not pass: `LOG_RUN` rows on end, or the loss follows."""
    any_norm = np.any(list(norms.values()), axis=0)
    follows = np.zeros_like(any_norm) if loss is None else loss
    bad = np.zeros_like(any_norm)
    for row in np.flatnonzero(any_norm):
        run = any_norm[row : row + LOG_RUN]
        stays = (len(run) == LOG_RUN and run.all()) or (row > 0 and bad[row - 1])
        bad[row] = stays or follows[row : row + LOG_RUN].any()
    return {name: hits & bad for name, hits in norms.items()}


def _loss_not_finite(table: StepTable) -> Bools:
    """Rows where the loss is NaN or infinite, or missing where it used to be."""
    loss = np.asarray(table.column("loss"), np.float64)
    if not np.isfinite(loss).any() and not table.exact_names:
        return np.ones(len(loss), dtype=bool)
    return _lost(table, "loss")


def _lost(table: StepTable, name: str) -> Bools:
    """Rows where `name` is infinite, or NaN although it was logged regularly until then.

    A row that carries values which rows with a `name` do not have is of another kind (an
    evaluation) and not counted.
    """
    values = np.asarray(table.column(name), np.float64)
    known = np.isfinite(values)
    rows = np.arange(len(values))
    last = np.maximum.accumulate(np.where(known, rows, -1))
    seen = np.cumsum(known)
    since = np.diff(rows[known], prepend=rows[known][:1])
    widest = np.maximum.accumulate(np.where(known, _scatter(since, known), 0))
    regular = (seen >= REGULAR) & (widest <= 1)
    overdue = (seen >= REGULAR) & (rows - last > 2 * np.maximum(widest, 1))
    missing = ~known & (regular | overdue)
    return np.isinf(values) | (missing & ~_other_kind(table, name, known, missing))


def _scatter(values: npt.NDArray[np.int64], where: Bools) -> npt.NDArray[np.int64]:
    out = np.zeros(len(where), np.int64)
    out[where] = values
    return out


def _other_kind(table: StepTable, name: str, known: Bools, missing: Bools) -> Bools:
    """Missing rows with a value in a column that most rows with a `name` left empty so far."""
    other = np.zeros(len(missing), dtype=bool)
    if missing.any():
        for column in table.names:
            filled = ~np.isnan(np.asarray(table.column(column), np.float64))
            other |= missing & filled & (2 * np.cumsum(filled & known) < np.cumsum(known))
    return other


def _positive(values: npt.NDArray[np.float64]) -> Bools:
    return np.asarray(np.nan_to_num(np.asarray(values, np.float64), nan=0.0) > 0)
