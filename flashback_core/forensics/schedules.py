"""Learning-rate schedules as factors of the peak rate."""

from __future__ import annotations

import math

__all__ = ["lr_factor", "milestones"]

_LOWEST = 0.02  # a rate of exactly 0 would look like a fault


def lr_factor(name: str, step: int, *, planned_steps: int, warmup: int) -> float:
    """Factor of the peak learning rate at `step`.

    Args:
        name: ``cosine`` (to 0.1), ``linear`` (to 0.02), ``constant``, ``inverse_sqrt``, ``wsd``
            (constant, then down over the last fifth), ``step`` (÷ 10 at 0.6), ``sgdr`` (cosine
            with four restarts), ``cyclic`` (triangles), ``one_cycle`` (up over 0.3, then down).
        step: From 0; at or past the planned end the last value stands.
        planned_steps: Length that the schedule is made for.
        warmup: Steps of linear warm-up, on top of all.
    """
    position = min(step, planned_steps) / max(planned_steps, 1)
    return min(1.0, (step + 1) / max(warmup, 1)) * _body(name, position, step, planned_steps)


def _body(name: str, position: float, step: int, planned: int) -> float:
    if name == "cosine":
        return 0.1 + 0.9 * _half_cosine(position)
    if name == "linear":
        return max(_LOWEST, 1.0 - position)
    if name == "inverse_sqrt":
        return 1.0 / math.sqrt(1.0 + 20.0 * position)
    if name == "wsd":
        return 1.0 if position < 0.8 else max(_LOWEST, (1.0 - position) / 0.2)
    if name == "step":
        return 1.0 if position < 0.6 else 0.1
    if name == "sgdr":
        return 0.05 + 0.95 * _half_cosine(step % _period(planned, 4) / _period(planned, 4))
    if name == "cyclic":
        return 0.2 + 0.8 * (1.0 - abs(2.0 * (step % _period(planned, 6)) / _period(planned, 6) - 1))
    if name == "one_cycle":
        up = position / 0.3
        return 0.1 + 0.9 * up if up < 1 else 0.02 + 0.98 * _half_cosine((position - 0.3) / 0.7)
    return 1.0


def _half_cosine(position: float) -> float:
    return 0.5 * (1.0 + math.cos(math.pi * position))


def _period(planned: int, parts: int) -> int:
    return max(1, planned // parts)


def milestones(name: str, *, planned_steps: int, n_steps: int) -> list[int]:
    """Steps at which the schedule jumps: restarts and step decays, before `n_steps`."""
    if name == "step":
        found = [math.ceil(0.6 * planned_steps)]
    elif name == "sgdr":
        period = _period(planned_steps, 4)
        found = list(range(period, n_steps, period))
    else:
        found = []
    return [step for step in found if 0 < step < n_steps]
