"""Facts that a report carries for its reader: what was checked, and what its figures mean."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from flashback_core.detectors.rules.leap import GROUPS
from flashback_core.detectors.score_stream import SCALES
from flashback_core.schema import EXACT_FIELDS, N_BINS
from flashback_core.table import StepTable

__all__ = ["CONFIDENCE_MEANING", "report_facts"]

CONFIDENCE_MEANING = (
    "The confidence is the share of such findings that were right within two steps in runs that "
    "were broken on purpose (the training split): it grows with the strength of the alarm and with "
    "the belief in its date. Exact checks such as NaN have 0.99."
)

_ABSENT = {field.name: field.absent for field in EXACT_FIELDS}

_LOSS = (
    "The loss: exactly zero after it was not, never below its start, or more than half of what was "
    "learnt given back."
)
_GROUPS = (
    "Parts of the model whose gradient or update becomes exactly zero, or that begin to move late."
)
_OF_FIELDS = (
    ("step_skipped", "Skipped updates that do not end."),
    ("config_hash", "Writes to the weights, the optimizer's state and the buffers from outside."),
    (
        "config_hash",
        "Settings of the optimizer, dropout rates, train and eval mode, who is frozen.",
    ),
    ("batch_seen", "Batches that come again at once, or in the same order as before."),
    ("duplicates", "Samples that are repeated inside a batch."),
    ("labels", "Labels that stop following their inputs."),
    ("samples_known", "Samples that come again, with the same inputs and labels."),
    ("grads_kept", "Gradients that nobody took away between two steps."),
    ("lost_updates", "Tensors that have a gradient and do not move."),
    ("zero_grads", "Tensors whose gradient becomes exactly zero or is missing."),
)


def report_facts(
    table: StepTable,
    *,
    n_statistics: int,
    min_steps: int,
    false_alarms: float | None,
    budget: float | None = None,
) -> dict[str, Any]:
    """The facts of a report on `table`, as plain JSON values.

    Args:
        table: The run.
        n_statistics: Statistics that have a threshold.
        min_steps: Rows that the statistics need before they say anything.
        false_alarms: Measured false alarms per 100,000 healthy steps; None where none is stated.
        budget: Nominal ones; None where no budget sets the thresholds.
    """
    found: dict[str, Any] = {
        "checked": list(_checked(table, n_statistics, min_steps)) if len(table) else [],
        "confidence_meaning": CONFIDENCE_MEANING,
    }
    if false_alarms is not None:
        found["false_alarms_per_100k"] = float(false_alarms)
    if budget is not None:
        found["budget"] = float(budget)
    return found


def _checked(table: StepTable, n_statistics: int, min_steps: int) -> Iterator[str]:
    names = set(table.names)
    lasts = {name.rpartition(":")[2] for name in names}
    if lasts & {"nonfinite", "update_nonfinite", "loss", "grad_norm"}:
        yield "Numbers that are NaN or infinite: gradients, updates, the loss and norms."
    if "loss" in names:
        yield _LOSS
    if "lr" in names:
        yield "The learning rate against its own schedule, step by step."
    elif (
        sum(name.startswith("group:") and name.endswith(":update_norm") for name in names) >= GROUPS
    ):
        yield "Updates of all groups that grow by one factor, since no learning rate is recorded."
    if "grad_norm" in names:
        yield "A gradient norm that stays a thousand times above all that came before."
    if "grad_max" in names:
        yield "Gradients whose largest entries become one and the same number."
    if any(name.startswith("group:") for name in names):
        yield _GROUPS
    yield from (words for field, words in _OF_FIELDS if _is_known(table, field))
    yield from _left_out(table)
    if _is_known(table, "low16") and f"hist_update:{N_BINS - 1}" in names:
        yield "Weights that lose the precision of their low 16 bits."
    yield _statistics(table, n_statistics, min_steps)


def _left_out(table: StepTable) -> Iterator[str]:
    """Which weights were not compared between two steps, and why."""
    found: dict[str, list[str]] = {}
    for event in table.events:
        why = event.get("why") if event.get("event") == "rewritten" else None
        found |= why if isinstance(why, dict) else {}
    for why, names in found.items():
        some = ", ".join(str(name) for name in names[:3]) + (", …" if len(names) > 3 else "")
        yield f"Not applied: writes from outside to the weights {some} ({why})."


def _is_known(table: StepTable, field: str) -> bool:
    """Whether any row knows the field; a field that is zero by habit is known where it is there."""
    name = f"exact:{field}"
    if name not in table.exact_names:
        return False
    if field == "samples_known":
        return bool(np.any(table.column(name) > 0))
    return field == "step_skipped" or bool(np.any(table.column(name) != _ABSENT[field]))


def _statistics(table: StepTable, n_statistics: int, min_steps: int) -> str:
    if len(table) < min_steps:
        return (
            f"Not applied: the statistics, which need {min_steps} rows to learn what is normal; "
            f"here are {len(table)}."
        )
    *some, last = sorted(set(SCALES.values()))
    over = f"{', '.join(str(n) for n in some)} and {last}"
    return (
        f"{n_statistics} statistics of {_metrics(len(table.names))} over {over} rows, each in "
        "units of the run's own noise; one speaks from its threshold on."
    )


def _metrics(n: int) -> str:
    return "1 metric" if n == 1 else f"{n} metrics"
