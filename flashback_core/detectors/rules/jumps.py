"""What a jump of the learning rate looks like.

A drop that holds, a return to the earlier peak, the end of a constant warm-up, the next cycle of a
sawtooth and a stair at the start of an epoch look like a schedule and are a *change*; a spike that
returns, a rise by a factor, a fall to zero and a warm-up in the middle of a run are *bad*.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

__all__ = ["AHEAD", "RELATIVE", "Jump", "judge"]

RELATIVE = 0.02
"""A step below this share of the learning rate is never a jump."""
AHEAD = 6
"""Rows from a jump on that say what kind it is."""
VANISHED = 1e-3
"""A fall below this share is a fault, not a milestone."""
EARLY = 16
"""Rates so far within which a constant warm-up may end."""
FLAT = 0.3
"""Share of the steepest fall below which a curve is at its bottom."""
AGAIN = 1.05
"""A step up of at most so many times the largest earlier one is another cycle of it."""


@dataclass(frozen=True, slots=True)
class Jump:
    """A jump and what surrounds it.

    Attributes:
        before: Rate before it.
        after: Rates from it on, `AHEAD` of them where there are.
        peak: Largest rate before it.
        at: Its number among the known rates.
        slope: Size of the step before it.
        rise: Largest step up until then that was no jump.
        fall: The same down.
        epoch: Whether an epoch began there, and the rate never moved elsewhere.
    """

    before: float
    after: list[float]
    peak: float
    at: int
    slope: float
    rise: float
    fall: float
    epoch: bool


def judge(jump: Jump) -> tuple[str, str]:
    """What a jump looks like, and its severity."""
    before, after = jump.before, np.array(jump.after)
    now = after[0]
    if now <= before * VANISHED:
        return "all but nothing", "bad"
    size = abs(np.log(now) - np.log(before)) if before > 0 else np.inf
    positive = after[after > 0]
    if before > 0 and np.any(np.abs(np.log(positive) - np.log(before)) < size / 4):
        return "and came back within a few steps", "bad"
    return _fall(jump, after) if now < before else _rise(jump, after)


def _fall(jump: Jump, after: np.ndarray[tuple[int], np.dtype[np.float64]]) -> tuple[str, str]:
    rises = np.diff(after)
    if len(rises) >= 3 and np.all(rises > 0) and after[-1] > 1.05 * after[0]:
        return "and climbs from there like a warm-up that began again", "bad"
    return "and held, as at a milestone", "change"


def _rise(jump: Jump, after: np.ndarray[tuple[int], np.dtype[np.float64]]) -> tuple[str, str]:
    now, before, peak = float(after[0]), jump.before, jump.peak
    at_bottom = jump.slope < FLAT * jump.fall
    highest = (3.0 if at_bottom else 1.6) * peak  # a warm-up may have hidden the first top
    if 0.8 * peak < now < highest and before < 0.2 * peak:
        return "back to its earlier peak, as at a warm restart", "change"
    if abs(now / peak - 1) < RELATIVE and at_bottom:
        return "from the bottom of its curve back to the peak, as at a warm restart", "change"
    if jump.at <= EARLY and jump.rise == 0 and jump.fall <= RELATIVE * before:
        return "after it had not risen from the start, as a short warm-up ends", "change"
    goes_on = len(after) > 1 and after[1] > now
    if goes_on and now - before <= AGAIN * jump.rise:
        return "and climbs on as it had before, as in a cycle", "change"
    if jump.epoch and np.ptp(after) <= 1e-6 * now:
        return "at the start of an epoch, where alone it moves", "change"
    return "a rise that no schedule of this run explains", "bad"
