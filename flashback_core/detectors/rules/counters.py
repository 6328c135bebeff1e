"""Rules on counters: the scheduler's, and the optimizer's own count of its steps."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from flashback_core.detectors.rules.rule import HABIT_ROWS, Rule
from flashback_core.detectors.rules.view import Bools, Layout, View
from flashback_core.detectors.signals import certain

__all__ = ["OptimizerSteps", "ScheduleStep"]

STOPPED = 8
"""Rows without an advance from which a scheduler is stopped, rather than late by one."""


class _Counter(Rule):
    """A counter that grows by a habit of the run.

    Attributes:
        by: Increment of a row, learnt from the first rows; 0 for "now and then", None unlearnt.
        early: Increments of the first rows.
    """

    field: ClassVar[str] = ""
    always = True
    keep: ClassVar[tuple[str, ...]] = ("by", "early")

    def __init__(self) -> None:
        super().__init__()
        self.by: int | None = None
        self.early: list[int] = []

    def wants(self, table_names: object) -> list[str]:
        """The counter."""
        return [self.field] if self.field in table_names else []  # type: ignore[operator]  # names

    def bind(self, layout: Layout) -> None:
        """Whether the counter is recorded."""
        if self.field not in layout.row:
            self.silence()

    def hits(self, view: View) -> Bools | None:
        """Rows at which the counter does not grow by the habit, or where one is still to learn."""
        if self.is_silent:
            return None
        if self.by is None:
            known = view.column(self.field) >= 0
            return np.asarray(known) if known.any() else None
        moved = view.moved(self.field)
        return np.asarray(moved != self.by)

    def see(self, view: View, i: int) -> None:
        """Judge one increment."""
        now, step = view.whole(self.field, i), view.step(i)
        last = view.whole_before(self.field, i)
        last_step = view.step(i - 1) if i else view.step_before
        held = view.skipped(i) or view.before("exact:step_skipped", i, 0.0) == 1
        if now < 0 or last < 0:
            return
        if self.by is None:
            self._learn(now - last, held or step - last_step != 1)
        elif not self._is_healthy(now - last, step - last_step, held):
            self.breach(view, i, last, now)

    def _learn(self, moved: int, is_odd: bool) -> None:
        if is_odd and moved == 0:
            return
        self.early.append(moved)
        if len(self.early) >= HABIT_ROWS:
            same = len(set(self.early)) == 1
            self.by = self.early[0] if same else 0
            self.dirty = True
            self.learnt(same)

    def learnt(self, is_same: bool) -> None:
        """Called when the habit is known; `is_same` where all early increments were equal."""

    def _is_healthy(self, moved: int, steps: int, held: bool) -> bool:
        by = self.by or 0
        if steps != 1:
            return 0 <= moved <= max(by, 1) * steps
        return moved == by or (held and moved == 0)

    def breach(self, view: View, i: int, last: int, now: int) -> None:
        """The counter went from `last` to `now`, which no habit explains."""


class ScheduleStep(_Counter):
    """The scheduler's own counter leaves its cadence: back, ahead, late, or twice a step.

    A scheduler that moves now and then (once an epoch) has `amount` as its usual advance and
    `shortest` as the smallest distance so far of two of them.

    Attributes:
        advance: Row of its last advance.
        late: Row, step and values of an update that it missed; empty for none.
    """

    field = "exact:scheduler_step"
    keep = (*_Counter.keep, "amount", "shortest", "advance", "late")

    def __init__(self) -> None:
        super().__init__()
        self.amount = self.shortest = 0
        self.advance = -1
        self.late: list[int] = []

    def see(self, view: View, i: int) -> None:
        """As in `_Counter`; an update that it missed waits for what comes after."""
        if self.late:
            self._wait(view, i)
        super().see(view, i)

    def _wait(self, view: View, i: int) -> None:
        """Late by one, if it goes on within `STOPPED` rows; otherwise it was stopped."""
        row, now = view.base + i, view.whole(self.field, i)
        start, step, value = self.late
        if now != value and now >= 0:
            self.late = []
            self.watch_until = row
            if not view.book.near(start, view.book.lr) and self.may_speak(start, "schedule_step"):
                text = (
                    f"The scheduler did not advance at step {step}, as it had at each step before, "
                    f"and went on {row - start} steps later: the schedule is late from there on."
                )
                self._say(row, step, text)
        elif row - start + 1 >= STOPPED:
            self.late, self.by, self.early, self.dirty = [], 0, [], True
            if self.may_speak(start, "schedule_stopped"):
                text = f"The scheduler stopped at {value}: it has not advanced since step {step}."
                self._say(row, step, text, "change")

    def breach(self, view: View, i: int, last: int, now: int) -> None:
        """Say what the counter did."""
        row, step, moved = view.base + i, view.step(i), now - last
        if self.by and moved == 0:
            if not self.late:
                self.late = [row, step, now]
                self.watch_until = row + STOPPED
            return
        if not self.by and self._is_usual(row, moved):
            return
        if view.book.near(row, view.book.lr) or not self.may_speak(row, "schedule_step"):
            return
        usual = f"by {self.by} a step" if self.by else f"by {self.amount or 1} now and then"
        text = (
            f"The scheduler's own counter went from {last} to {now} at step {step}, where it grew "
            f"{usual}: it was stepped too often, set back or not restored."
        )
        self._say(row, step, text)

    def _is_usual(self, row: int, moved: int) -> bool:
        """Learn the advances of a scheduler that moves now and then."""
        gap, self.advance = row - self.advance, row
        is_first = self.amount == 0
        if moved > 0 and is_first:
            self.amount, self.shortest = moved, 0
            return True
        is_short = self.shortest > 0 and 2 * gap <= self.shortest
        if moved > 0 and not is_short:
            self.shortest = min(self.shortest or gap, gap)
        return 0 < moved <= self.amount and not is_short

    def learnt(self, is_same: bool) -> None:
        """Increments that differ from row to row are learnt as they are."""
        if not is_same:
            self.amount, self.shortest = max(*self.early, 1), 1

    def _say(self, known: int, step: int, text: str, severity: str = "bad") -> None:
        kind = "schedule_step" if severity == "bad" else "schedule_stopped"
        metrics = {self.field: step, "lr": step}
        self.say(known, certain(step, kind, text, metrics=metrics, severity=severity))


class OptimizerSteps(_Counter):
    """The smallest step count in the optimizer's state goes back or jumps.

    A tensor that gets its first gradient begins its count at 1, which is no fault: the number of
    tensors without a gradient falls in the same row. Where writes to the state from outside are
    watched, a reset is one of them.
    """

    field = "exact:opt_steps"

    def wants(self, table_names: object) -> list[str]:
        """The count, and the tensors that it leaves out."""
        names = (self.field, "exact:no_grads", "exact:outside")
        return [n for n in names if n in table_names]  # type: ignore[operator]  # names

    def learnt(self, is_same: bool) -> None:
        """A count that comes and goes with the tensors that have one says nothing."""
        if not is_same or not self.by:
            self.silence()

    def breach(self, view: View, i: int, last: int, now: int) -> None:
        """Say what the count did, unless a tensor is new in the state or a group was thawed."""
        row, step = view.base + i, view.step(i)
        before = view.whole_before("exact:no_grads", i)
        is_new = 0 <= view.whole("exact:no_grads", i) < before
        if is_new or (now < last and view.book.near(row, view.book.freezing)):
            return
        if view.has("exact:outside"):
            outside = int(view.whole("exact:outside", i))
            if outside >= 0 and not outside & 2:  # the optimizer itself began to count a tensor
                return
        if now == last:  # the tensors that have a count got no gradient: nothing was reset
            return
        if self.may_speak(row, "optimizer_step_reset"):
            text = (
                f"The optimizer's own step count went from {last} to {now} at step {step}, where "
                f"it grew by {self.by} a step: its state was reset, replaced or not restored."
            )
            metrics = {self.field: step}
            self.say(row, certain(step, "optimizer_step_reset", text, metrics=metrics))
