"""Raw columns of an export -> a table: steps in order, one row each, names that we know."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from flashback_core.errors import SourceError
from flashback_core.schema import SketchSchema
from flashback_core.table import MemoryTable

__all__ = ["ALIASES", "canonical", "table_of"]

ALIASES = {
    "loss": ("loss", "train_loss", "train/loss", "training_loss", "train_loss_step", "lm loss",
             "Training/loss", "train/loss_step", "Loss/train", "trainer/loss", "total_loss"),
    "lr": ("lr", "learning_rate", "train/learning_rate", "train/lr", "learning rate",
           "lr-AdamW", "lr-Adam", "lr-SGD"),
    "grad_norm": ("grad_norm", "train/grad_norm", "gradient_norm", "grad norm", "grad-norm",
                  "total_grad_norm", "global_grad_norm", "gnorm", "train/global_grad_norm"),
}  # fmt: skip
"""What other tools call the metrics that we know, the first that is there counts."""


def canonical(names: Sequence[str]) -> dict[str, str]:
    """Our metric for each of `names` that is one, theirs -> ours."""
    lower = {name.strip().lower(): name for name in names}
    found: dict[str, str] = {}
    for ours, aliases in ALIASES.items():
        theirs = next((lower[a.lower()] for a in aliases if a.lower() in lower), None)
        if theirs is not None:
            found[theirs] = ours
    return found


def table_of(
    steps: npt.ArrayLike,
    columns: Mapping[str, npt.NDArray[Any]],
    *,
    events: Sequence[Mapping[str, Any]] = (),
    source: str,
) -> MemoryTable:
    """A table of `columns` by `steps`: sorted, one row per step (the last one written counts).

    Raises:
        SourceError: If no column is a metric that we know, or nothing is left.
    """
    renames = canonical([n for n in columns if n not in ALIASES])
    ours = {
        renames[n] if n in renames and renames[n] not in columns else n: v
        for n, v in columns.items()
    }
    known = [n for n in ours if n in SketchSchema() or n.startswith("group:")]
    if not known:
        shown = ", ".join(list(columns)[:8]) or "none"
        msg = (
            f"{source}: no column is a metric that flashback knows (columns: {shown}); "
            "expected at least 'loss', e.g. an export of flashback or a tracker's CSV"
        )
        raise SourceError(msg)
    numbers = np.asarray(steps)
    order, n_again = _in_order(numbers)
    kept = {n: np.asarray(v)[order] for n, v in ours.items()}
    notes = list(events)
    if n_again:
        notes.append({"event": "note", "step": int(numbers[order][0]) if len(order) else 0,
                      "text": f"{n_again} rows repeat a step; the last of each counts"})  # fmt: skip
    return MemoryTable(numbers[order], kept, events=notes, source=source)


def _in_order(steps: npt.NDArray[Any]) -> tuple[npt.NDArray[np.intp], int]:
    """Row numbers by step, of equal steps the last written; and how many were left out."""
    order = np.argsort(steps, kind="stable")
    last = np.ones(len(order), np.bool_)
    last[:-1] = np.diff(steps[order]) != 0
    return order[last], int(len(order) - last.sum())
