"""Faults of the learning-rate schedule, most of them made when a run is resumed."""

from __future__ import annotations

import copy
import warnings
from typing import Any

from flashback_core.errors import ModelError
from flashback_core.faults.base import Fault
from flashback_core.faults.kind import Kind

__all__ = ["KINDS", "ScheduleFault"]


class ScheduleFault(Fault):
    """A fault that acts on the scheduler; needs ``attach(…, scheduler=scheduler)``."""

    def _prepare(self) -> None:
        if self.scheduler is None:
            msg = (
                f"fault {self.kind!r} acts on the learning-rate scheduler; attach it with "
                "fault.attach(model, optimizer, scheduler=scheduler)"
            )
            raise ModelError(msg)

    def remember(self) -> tuple[dict[str, Any], list[Any]]:
        """State of the scheduler and the rates that it set."""
        rates = [group["lr"] for group in self.optimizer.param_groups]
        return copy.deepcopy(self.scheduler.state_dict()), rates

    def go_back(self, memory: tuple[dict[str, Any], list[Any]]) -> None:
        """Give the scheduler an earlier state."""
        state, rates = memory
        self.scheduler.load_state_dict(state)
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate

    def advance(self, n: int) -> None:
        """Step the scheduler `n` times more."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*lr_scheduler.step.*")
            for _ in range(n):
                self.scheduler.step()


class Restart(ScheduleFault):
    """The schedule starts over, as when the scheduler is not restored."""

    def _prepare(self) -> None:
        super()._prepare()
        self._first = self.remember()

    def _start(self, step: int) -> None:
        if self.is_onset(step):
            self.go_back(self._first)


class Ahead(ScheduleFault):
    """The schedule jumps ahead by `strength` steps."""

    def _start(self, step: int) -> None:
        if self.is_onset(step):
            self.advance(max(1, round(self.strength)))


class Behind(ScheduleFault):
    """The schedule is one step late from here on, as when a scheduler is restored one step off."""

    _last: tuple[dict[str, Any], list[Any]] | None = None

    def _start(self, step: int) -> None:
        if step == self.step - 1:
            self._last = self.remember()
        if self.is_onset(step) and self._last is not None:
            self.go_back(self._last)


class Faster(ScheduleFault):
    """The schedule is stepped `strength` times per update, as once per process."""

    def _after(self, step: int) -> None:
        # the update of this step still has the right rate; the first wrong one is the next
        if step >= self.step - 1:
            self.advance(max(1, round(self.strength) - 1))


KINDS = (
    Kind(name="sched_restart", family="schedule", act=Restart, needs=("scheduler",),
         doc="the learning-rate schedule starts over",
         behaviour="the rate jumps back to its start, warm-up included"),
    Kind(name="sched_offset", family="schedule", act=Ahead, strength=150.0,
         strengths=(10.0, 400.0), needs=("scheduler",),
         doc="the schedule jumps ahead by {strength} steps",
         behaviour="the rate steps down by as much as the schedule falls in that time"),
    Kind(name="lr_resume_offset", family="schedule", act=Behind, needs=("scheduler",),
         doc="the schedule is one step late",
         behaviour="one rate is used twice; nothing else shows"),
    Kind(name="lr_schedule_xN", family="schedule", act=Faster, strength=4.0,
         strengths=(2.0, 16.0), needs=("scheduler",),
         doc="the schedule is stepped {strength} times per update",
         behaviour="the schedule runs ahead and ends early"),
)  # fmt: skip
