"""ScheduleWatch: what the run's own learning-rate scheduler says of the step that is made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from flashback_core.errors import ModelError
from flashback_core.sketch.parameters import innermost_optimizer

__all__ = ["ScheduleWatch", "is_scheduler"]


class ScheduleWatch:
    """Reads schedulers and never steps them.

    Torch leaves nothing on an optimizer that leads to its scheduler, so it has to be handed over.
    Where an optimizer has several, a field is known only if they agree.

    Args:
        scheduler: A scheduler, several, or None. A wrapper with a ``scheduler`` inside is unpacked.
        optimizers: Those of the run, in order. A scheduler that names none of them is taken for
            the first.

    Raises:
        ModelError: If one has neither ``get_last_lr`` nor ``last_epoch``.
    """

    def __init__(self, scheduler: Any, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        given = scheduler if isinstance(scheduler, (list, tuple)) else [scheduler]
        self._of: list[list[Any]] = [[] for _ in optimizers]
        for one in given:
            if one is not None:
                inner = _inner(one)
                self._of[_place(inner, optimizers)].append(inner)

    def __bool__(self) -> bool:
        """Whether there is any scheduler."""
        return any(self._of)

    def fields(self, i: int) -> dict[str, float]:
        """Exact fields of a step of optimizer `i`, just before its update; empty if not known."""
        schedulers = self._of[i]
        out: dict[str, float] = {}
        rates = {_rate(s) for s in schedulers}
        if len(rates) == 1 and (rate := rates.pop()) is not None:
            out["lr_scheduled"] = rate
        counters = {_counter(s) for s in schedulers}
        if len(counters) == 1 and (counter := counters.pop()) is not None:
            out["scheduler_step"] = counter
        return out


def is_scheduler(thing: object) -> bool:
    """Whether a `ScheduleWatch` can read `thing`."""
    inner = getattr(thing, "scheduler", None)
    return hasattr(thing, "get_last_lr") or hasattr(thing, "last_epoch") or hasattr(
        inner, "get_last_lr")  # fmt: skip


def _inner(scheduler: Any) -> Any:
    """The scheduler that counts: that of a wrapper, as Accelerate's."""
    if not is_scheduler(scheduler):
        msg = (
            f"scheduler is a {type(scheduler).__name__}; expected something with get_last_lr or "
            "last_epoch, as a torch.optim.lr_scheduler.LRScheduler, or a list of them"
        )
        raise ModelError(msg)
    if not hasattr(scheduler, "last_epoch") and is_scheduler(getattr(scheduler, "scheduler", None)):
        return scheduler.scheduler
    return scheduler


def _place(scheduler: Any, optimizers: Sequence[torch.optim.Optimizer]) -> int:
    """Which of the optimizers it sets the rate of."""
    wrapped = getattr(scheduler, "optimizer", None)
    if wrapped is None:
        return 0
    inner = innermost_optimizer(wrapped)
    return next((i for i, o in enumerate(optimizers) if o is inner), 0)


def _rate(scheduler: Any) -> float | None:
    """Rate of the first group that holds now; None if it is not known without waiting."""
    if not hasattr(scheduler, "get_last_lr"):
        return None
    rate = scheduler.get_last_lr()[0]
    if isinstance(rate, torch.Tensor) and rate.device.type != "cpu":
        return None
    return float(rate)


def _counter(scheduler: Any) -> int | None:
    counter = getattr(scheduler, "last_epoch", None)
    return counter if isinstance(counter, int) and abs(counter) < 2**62 else None
