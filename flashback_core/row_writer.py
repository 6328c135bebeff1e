"""RowWriter: finished rows into the index and on to the sinks, in order, as they become ready."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from flashback_core.index import StepSketchIndex
from flashback_core.no_index import NoIndex
from flashback_core.rows import OpenRow
from flashback_core.schema import SketchSchema
from flashback_core.sink_set import SinkSet
from flashback_core.warn import Guard
from flashback_core.watch.run import weights_event

__all__ = ["RowWriter"]

WrittenRow = Callable[[int, npt.NDArray[np.float64], Mapping[str, float]], object]

_MOST_EVENTS = 200


class RowWriter:
    """Writes rows whose sums have arrived; a row behind one that has not arrived waits.

    Args:
        index: Open for writing; closed by `close`.
        schema: Of the rows.
        sinks: Told of every row after it was written.
        guard: Turns failures into warnings.
        name_of: Name of a parameter.
        on_row: Called with step, values and exact fields of each row after it was written; guards
            itself.
        on_event: Called with each event.
        rewritten: ``id`` of each parameter that is not compared between two steps.
    """

    def __init__(
        self,
        index: StepSketchIndex | NoIndex,
        schema: SketchSchema,
        sinks: SinkSet,
        guard: Guard,
        name_of: Callable[[torch.Tensor], str],
        on_row: WrittenRow,
        on_event: Callable[[Mapping[str, Any]], object],
        rewritten: frozenset[int] = frozenset(),
    ) -> None:
        self._index, self._schema, self._sinks, self._guard = index, schema, sinks, guard
        self._name_of, self._on_row, self._on_event = name_of, on_row, on_event
        self._pending: deque[tuple[int, OpenRow]] = deque()
        self._n_events = 0
        self._parameters: Sequence[torch.Tensor] = ()
        self._sizes = np.zeros(0, np.int64)
        self._rewritten = rewritten
        self._compared = np.zeros(0, bool)

    def put(self, step: int, row: OpenRow) -> None:
        """Take a row that is complete but for sums that may be on their way."""
        self._pending.append((step, row))
        self.write()

    def write(self, *, wait: bool = False) -> None:
        """Write what is ready; with `wait`, everything."""
        while self._pending and (wait or self._pending[0][1].ready()):
            step, row = self._pending.popleft()
            self._write(step, row)

    def add_event(self, event: Mapping[str, Any]) -> None:
        """Keep an event between the rows."""
        with self._guard("events", keep=True):
            self._index.add_event(dict(event))
            self._on_event(event)

    def close(self) -> None:
        """Write what is left and seal the index."""
        with self._guard("recording"):
            self.write(wait=True)
        with self._guard("sealing the index"):
            self._index.close()

    def _write(self, step: int, row: OpenRow) -> None:
        values = row.values(self._schema)
        with self._guard("the exact watches"):
            self._look_at(row.parameters)
            row.seal(self._sizes, self._compared)
            self._report_weights(step, row)
        try:
            self._index.append(step, values, row.exact)
        except OSError as error:
            self._guard.warn(
                "the disk", f"step {step} could not be written to {self._index.path} ({error}); "
                "free some space. The training goes on, recording is tried again at each step "
                "and the index will state the gap")  # fmt: skip
        self._sinks.step(step, values, self._schema)
        self._on_row(step, values, row.exact)

    def _look_at(self, parameters: Sequence[torch.Tensor]) -> None:
        """Entries of each tensor, and which are compared; once as long as it is the same tuple."""
        if parameters is not self._parameters:
            self._sizes = np.array([p.numel() for p in parameters], np.int64)
            self._compared = np.array([id(p) not in self._rewritten for p in parameters], bool)
            self._parameters = parameters

    def _report_weights(self, step: int, row: OpenRow) -> None:
        """Say which weights something else than the optimizer changed before `step`."""
        if row.sums is None or not int(row.exact.get("outside", 0)) & 1:
            return
        names = [self._name_of(p) for p in row.parameters]
        event = weights_event(step, row.sums.result(), names, self._compared)
        if event is not None and self._n_events < _MOST_EVENTS:
            self._n_events += 1
            self.add_event(event)
