"""LoopInput: what a loop says of a step, checked piece by piece."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flashback_core.rows import Logged, batch_ids_array, batch_scalars, exact_fields, one_number
from flashback_core.warn import Guard
from flashback_core.watch.batch import BatchWatch

__all__ = ["LoopInput"]


class LoopInput:
    """Reads the arguments of `Recorder.log`; a piece that is wrong costs itself and one warning.

    Args:
        guard: Turns failures into warnings.
    """

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._batches = BatchWatch()

    def read(
        self, step: int, loss: Any, exact: Mapping[str, float], batch_ids: Any, batch: Any
    ) -> Logged:
        """What was logged of `step`; see `Recorder.log`."""
        logged = Logged()
        with self._guard("the loss that was logged", keep=True):
            logged.loss = one_number(loss)
        with self._guard("the exact fields that were logged", keep=True):
            logged.exact = exact_fields(exact)
        if batch_ids is not None or batch is not None:
            with self._guard("the batch", keep=True):
                self._add_batch(logged, step, batch_ids, batch)
        return logged

    def _add_batch(self, logged: Logged, step: int, batch_ids: Any, batch: Any) -> None:
        ids = None if batch_ids is None else batch_ids_array(batch_ids)
        if ids is not None:
            logged.scalars.update(batch_scalars(ids))
        seen = self._batches.fields(step, ids, batch)
        logged.exact = {**seen, **logged.exact}
        logged.events = [{**note, "step": step} for note in self._batches.notes]
