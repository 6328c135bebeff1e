"""EventBook: what was declared and told beside the rows, by row number, in bounded memory."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["FREEZING", "LR_KIND", "SMALL_LR_STEP", "WRITES_NOTHING", "EventBook"]

Ints = npt.NDArray[np.int64]

LR_KIND = "lr_milestone"
SMALL_LR_STEP = 0.3
"""A declared step of the log learning rate below this leaves nothing to be learnt anew."""
FREEZING = frozenset({"freeze", "unfreeze"})
WRITES_NOTHING = FREEZING | {
    LR_KIND, "data", "accumulation", "batch_size", "weight_decay", "gap",
}  # fmt: skip
"""Declared kinds that change no weight, state or buffer by themselves."""
RECENT = 2048
"""Steps for which events that rules look up are remembered."""
NOTED = ("outside", "config", "samples")
"""Events that a rule looks up by the step that they belong to."""
TOLD = ("replica_divergence", "resume_check")
STARTS = ("resume", "session")


class EventBook:
    """Rows of events. It reads each event once and forgets those that lie far behind.

    An event belongs to the first row whose step is not below its own. Events of a step that comes
    later wait; what is waiting is no part of the state, since `read` is given all events again.

    Attributes:
        lr: Rows at which the learning rate may jump.
        relearn: Rows from which the baseline must be learnt anew.
        freezing: Rows at which groups may stop or start.
        writes: Rows before whose update the loop may write to weights, state or buffers.
        starts: Rows at which a recording began.
    """

    def __init__(self) -> None:
        self.lr: list[int] = []
        self.relearn: list[int] = []
        self.freezing: list[int] = []
        self.writes: list[int] = []
        self.starts: list[int] = [0]
        self.undecided: list[int] = []
        self.told: list[dict[str, Any]] = []
        self._ahead: list[dict[str, Any]] = []
        self._n_read = 0
        self._n_known = 0
        self._last_step: int | None = None
        self._waiting: list[tuple[float, int, dict[str, Any]]] = []
        self._noted: list[tuple[float, int, dict[str, Any]]] = []

    def read(self, events: Sequence[Mapping[str, Any]]) -> None:
        """Take in the events that are new since the last call."""
        self._ahead.clear()
        for i in range(self._n_read, len(events)):
            event, step = events[i], events[i].get("step")
            if isinstance(step, (int, float, np.integer)) and step == step:
                behind = self._last_step is not None and step <= self._last_step
                if not (behind and i < self._n_known):
                    self._sort_in(float(step), i, dict(event))
        self._n_read = len(events)

    def _sort_in(self, step: float, i: int, event: dict[str, Any]) -> None:
        if event.get("event") in NOTED:
            insort(self._noted, (step, i, event), key=lambda e: e[:2])
        else:
            insort(self._waiting, (step, i, event), key=lambda e: e[:2])

    def place(self, steps: Ints, base: int) -> None:
        """Give the waiting events of these rows their row numbers."""
        last = int(steps[-1])
        n = bisect_right(self._waiting, float(last), key=lambda e: e[0])
        due, self._waiting = self._waiting[:n], self._waiting[n:]
        for step, _, event in due:
            self._put(event, step, base + int(np.searchsorted(steps, step)), int(steps[0]))
        self._last_step, self._n_known = last, self._n_read
        n = bisect_right(self._noted, float(steps[0] - RECENT), key=lambda e: e[0])
        del self._noted[:n]

    def _put(self, event: dict[str, Any], step: float, row: int, first: int) -> None:
        what = event.get("event")
        if what in TOLD:
            self.told.append(event)
        elif what in STARTS:
            self.starts.append(row)
        elif what in ("expect", "gap") and (row > 0 or step >= first):
            self._declare(str(event.get("kind", what)), row)

    def _declare(self, kind: str, row: int) -> None:
        if kind in FREEZING:
            self.freezing.append(row)
        if kind not in WRITES_NOTHING:
            self.writes.append(row)
        if kind == LR_KIND:
            self.lr.append(row)
            self.undecided.append(row)
        else:
            self.relearn.append(row)

    def forget(self, row: int) -> None:
        """Forget the events before `row`."""
        for rows in (self.lr, self.relearn, self.freezing, self.writes, self.starts):
            if rows and rows[0] < row:
                rows[:] = [r for r in rows if r >= row]

    def noted(self, what: str, step: int) -> Iterator[dict[str, Any]]:
        """Events `what` of exactly this step."""
        start = bisect_right(self._noted, step - 0.5, key=lambda e: e[0])
        for at, _, event in self._noted[start:]:
            if at > step:
                return
            if event.get("event") == what:
                yield event

    def since_start(self, row: int) -> int:
        """Rows from the last start of a recording to `row`."""
        return row - max((start for start in self.starts if start <= row), default=0)

    def near(self, row: int, *rows: Sequence[int]) -> bool:
        """Whether `row` is within one row of any of `rows`."""
        return any(abs(row - other) <= 1 for part in rows for other in part)

    def remaining(self) -> list[dict[str, Any]]:
        """What was told of steps that never came."""
        return [*self._ahead, *(e for _, _, e in self._waiting if e.get("event") in TOLD)]

    def state(self) -> dict[str, Any]:
        """Rows of the recent events, as plain JSON values."""
        kept = ("lr", "relearn", "freezing", "writes", "starts", "undecided", "told")
        rows = {name: list(getattr(self, name)) for name in kept}
        rows["ahead"] = self.remaining()
        return {**rows, "n_known": self._n_known, "last_step": self._last_step}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from `state`; the next `read` brings back what had been waiting."""
        for name in ("lr", "relearn", "freezing", "writes", "starts", "undecided", "told"):
            setattr(self, name, list(state[name]))
        self._ahead = list(state["ahead"])
        self._n_known, self._last_step = int(state["n_known"]), state["last_step"]
