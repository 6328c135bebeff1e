"""What a report could not see in this run, and how to record it next time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from flashback_core.report.metric_words import split_metric
from flashback_core.table import StepTable

__all__ = ["Unseen", "unseen"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Unseen:
    """Something that was not recorded: what, what stays invisible, and how to record it."""

    what: str
    consequence: str
    how: str


_NOT_TAKEN = "The recorder that wrote this run does not take them."
_RECORDER = 'Record with fb.Recorder("runs/my-run", model, optimizer).'


def unseen(table: StepTable | None) -> tuple[Unseen, ...]:
    """What was not recorded in `table`."""
    if table is None:
        return (
            Unseen(
                what="The run itself",
                consequence="This report was made from its verdict alone, so it has no charts.",
                how="Run flashback detect SOURCE --html FILE on the run.",
            ),
        )
    return (*_metrics(table), *_exact(table))


def _metrics(table: StepTable) -> Iterator[Unseen]:
    names = table.names
    groups = {split_metric(n)[0] for n in names if n.startswith("group:")}
    if not _known(table, "loss"):
        yield Unseen(
            what="The loss",
            consequence="A loss that climbs, freezes or turns NaN is not seen.",
            how="Call rec.log(loss=loss) once per step.",
        )
    if not _known(table, "lr"):
        yield Unseen(
            what="The learning rate",
            consequence="A jump of the schedule shows only through what it does to the updates.",
            how=f"Log lr with the loss, or: {_RECORDER}",
        )
    if not groups:
        yield Unseen(
            what="Parts of the model",
            consequence="Which layers moved first, and faults of a single part, are not seen.",
            how=_RECORDER,
        )
    if not any(n.startswith("hist_") for n in names):
        yield Unseen(
            what="Sizes of gradients and updates",
            consequence="Underflow, lost updates and single huge entries are not seen.",
            how=_RECORDER,
        )


def _exact(table: StepTable) -> Iterator[Unseen]:
    if not _known(table, "exact:batch_hash", absent=0):
        yield Unseen(
            what="Which batch came at which step",
            consequence="A batch that comes twice or poisoned samples cannot be named.",
            how="Call rec.log(loss=loss, batch_ids=ids) with the sample ids of the batch.",
        )
    how = _NOT_TAKEN if any(n.startswith("group:") for n in table.names) else _RECORDER
    if not _known(table, "exact:params_hash", absent=0):
        yield Unseen(
            what="Fingerprints of the weights",
            consequence="Weights that changed between steps, as by a flipped bit, are not seen.",
            how=how,
        )
    if not _known(table, "exact:config_hash", absent=0):
        yield Unseen(
            what="The configuration at each step",
            consequence="A changed option of the optimizer is seen only by its effect.",
            how=how,
        )


def _known(table: StepTable, name: str, absent: int | None = None) -> bool:
    """Whether `name` was recorded at any of some rows spread over the run."""
    if name not in table or len(table) == 0:
        return False
    column = np.asarray(table.column(name))
    some = column[:: max(1, len(column) // 4096)]
    known = np.isfinite(some) if absent is None else some != absent
    return bool(known.any()) or bool(absent is None and np.isinf(column).any())
