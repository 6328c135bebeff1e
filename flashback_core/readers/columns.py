"""Raw columns of an export -> a table: steps in order, one row each, names that we know."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from flashback_core.errors import SourceError
from flashback_core.schema import EXACT_FIELDS, SketchSchema
from flashback_core.table import MemoryTable

__all__ = ["ALIASES", "LABELS", "STEP_NAMES", "canonical", "choose_run", "dtype_of", "table_of"]

ALIASES = {
    "loss": ("loss", "train_loss", "train/loss", "training_loss", "train_loss_step", "lm loss",
             "Training/loss", "train/loss_step", "Loss/train", "trainer/loss", "total_loss"),
    "lr": ("lr", "learning_rate", "train/learning_rate", "train/lr", "learning rate",
           "lr-AdamW", "lr-Adam", "lr-SGD"),
    "grad_norm": ("grad_norm", "train/grad_norm", "gradient_norm", "grad norm", "grad-norm",
                  "total_grad_norm", "global_grad_norm", "gnorm", "train/global_grad_norm"),
}  # fmt: skip
"""What other tools call the metrics that we know, the first that is there counts."""

STEP_NAMES = ("step", "global_step", "trainer/global_step", "_step", "iteration", "iter")
"""Columns that count steps, the first that is there counts."""

LABELS = frozenset({"run_id", "fault_kind", "is_after_first_bad", "steps_to_first_bad"})
"""Columns of the data-set layout that are no metrics."""

_DTYPES = {m.name: m.dtype for m in SketchSchema().metrics} | {
    f.column: f.dtype for f in EXACT_FIELDS
}
_ABSENT = {f.column: f.absent for f in EXACT_FIELDS}
_OF_GROUPS = {n.rpartition(":")[2]: d for n, d in _DTYPES.items() if n.startswith("group:")}


def dtype_of(name: str) -> str | None:
    """Dtype of one of our columns, of any group; None if it is not ours."""
    if name.startswith("group:"):
        return _OF_GROUPS.get(name.rpartition(":")[2])
    return _DTYPES.get(name)


def canonical(names: Sequence[str]) -> dict[str, str]:
    """Our metric for each of `names` that is one, theirs -> ours."""
    lower = {name.strip().lower(): name for name in names}
    found: dict[str, str] = {}
    for ours, aliases in ALIASES.items():
        theirs = next((lower[a.lower()] for a in aliases if a.lower() in lower), None)
        if theirs is not None:
            found[theirs] = ours
    return found


def choose_run(runs: Sequence[str], run_id: str | None, source: str) -> str | None:
    """Which of the `runs` in a file is meant; None if it holds one and none was asked for.

    Raises:
        SourceError: If `run_id` is not among them, or must be given.
    """
    if run_id is None and len(runs) <= 1:
        return None
    if run_id in runs:
        return run_id
    shown = ", ".join(runs[:5]) + (", …" if len(runs) > 5 else "")
    what = f"run {run_id!r} is not in it" if run_id else f"it holds {len(runs)} runs"
    msg = f"{source}: {what}; give run_id (--run-id), one of: {shown}"
    raise SourceError(msg)


def table_of(
    steps: npt.ArrayLike,
    columns: Mapping[str, npt.NDArray[Any]],
    *,
    events: Sequence[Mapping[str, Any]] = (),
    source: str,
) -> MemoryTable:
    """A table of `columns` by `steps`: sorted, one row per step (the last one written counts).

    Rows without a finite step are left out.

    Raises:
        SourceError: If no column is a metric that we know.
    """
    ours = _renamed(columns)
    if not any(dtype_of(name) for name in ours):
        shown = ", ".join(list(columns)[:8]) or "none"
        msg = (
            f"{source}: no column is a metric that flashback knows (columns: {shown}); "
            "expected at least 'loss', e.g. an export of flashback or a tracker's CSV"
        )
        raise SourceError(msg)
    numbers = np.asarray(steps)
    order, n_again = _in_order(numbers)
    notes = list(events)
    if n_again:
        text = f"{n_again} rows repeat a step; the last of each counts"
        notes.append({"event": "note", "step": int(numbers[order[0]]), "text": text})
    kept = {name: _sound(name, values[order]) for name, values in ours.items()}
    return MemoryTable(numbers[order].astype(np.int64), kept, events=notes, source=source)


def _renamed(columns: Mapping[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
    renames = canonical([n for n in columns if n not in ALIASES])
    return {
        renames[n] if n in renames and renames[n] not in columns else n: np.asarray(v)
        for n, v in columns.items()
    }


def _sound(name: str, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """`values` as an index would hold them: infinite counts are not known, exact fields are exact.

    An exact field has its own dtype; what does not fit it becomes its absent value.
    """
    dtype = dtype_of(name)
    if name in _ABSENT and values.dtype != dtype:
        return _exact(values, np.dtype(dtype), _ABSENT[name])
    if dtype == "i8" and values.dtype.kind == "f":
        return np.where(np.isfinite(values), values, np.nan)
    return values


def _exact(values: npt.NDArray[Any], dtype: np.dtype[Any], absent: float) -> npt.NDArray[Any]:
    if dtype.kind == "f":
        return values.astype(dtype)
    bounds = np.iinfo(dtype)
    fits = [v == v and bounds.min <= v <= bounds.max for v in values.tolist()]
    return np.array(
        [int(v) if ok else absent for v, ok in zip(values.tolist(), fits, strict=True)], dtype
    )


def _in_order(steps: npt.NDArray[Any]) -> tuple[npt.NDArray[np.intp], int]:
    """Row numbers by step, of equal steps the last written; and how many repeat a step."""
    known = np.flatnonzero(np.isfinite(steps) & (np.abs(steps) < 2**62))
    order = known[np.argsort(steps[known], kind="stable")]
    last = np.ones(len(order), np.bool_)
    last[:-1] = np.diff(steps[order].astype(np.int64)) != 0
    return order[last], int(len(order) - last.sum())
