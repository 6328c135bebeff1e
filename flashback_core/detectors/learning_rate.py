"""The learning rate against its own schedule: jumps beyond anything it did just before.

A schedule moves smoothly; what it does in one step is judged by what it did in the steps before,
both in absolute size (a linear warm-up is no jump) and in its logarithm (the end of a decay is
none). A jump that the loop declared is excused. Of the others, a drop that holds and a return to
the earlier peak look like a schedule and are a *change*; a spike that returns, a rise by a factor,
a fall to zero and a warm-up in the middle of a run are *bad*.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from flashback_core.baseline import delay, trailing_max
from flashback_core.bounds import bounded
from flashback_core.detectors.declared import Declared
from flashback_core.report.model import Finding, MetricScore
from flashback_core.table import StepTable

__all__ = ["LearningRate", "learning_rate"]

Floats = npt.NDArray[np.float64]

TIMES, TIMES_LOG = 3.0, 2.0
"""A step of the learning rate, and of its logarithm, is a jump from so many times the usual on."""
RELATIVE = 0.02
"""A step below this share of the learning rate is never a jump."""
MEMORY = 32
"""Rows whose steps say what this schedule does."""
FIRST_ROWS = 3
"""Steps of the learning rate that must be known before one is judged; also those whose logarithms
say what is usual, since in a warm-up they shrink fast."""
AHEAD = 6
"""Rows after a jump that say what kind it is."""
VANISHED = 1e-3
"""A fall below this share is a fault, not a milestone."""


@dataclass(frozen=True)
class LearningRate:
    """What the learning rate did.

    Attributes:
        rows: Rows of all jumps that nobody declared.
        findings: One finding per jump, `bad` or `change`.
    """

    rows: tuple[int, ...]
    findings: tuple[Finding, ...]


def learning_rate(table: StepTable, events: Declared) -> LearningRate:
    """Jumps of the learning rate of `table` that are not among the declared `events`."""
    if "lr" not in table:
        return LearningRate((), ())
    lr = bounded(table.column("lr"))
    known = np.flatnonzero(np.isfinite(lr) & (np.cumsum((lr > 0) & np.isfinite(lr)) > 0))
    jumps = _jumps(lr[known], table.steps[known])
    jumps = [at for at in jumps if not events.near(int(known[at]), events.lr)]
    regular = _is_regular(table.steps[known][jumps])
    findings = [_finding(lr[known], table.steps[known], at, regular) for at in jumps]
    return LearningRate(tuple(int(known[at]) for at in jumps), tuple(findings))


def _jumps(lr: Floats, steps: npt.NDArray[np.int64]) -> list[int]:
    """Positions of jumps among the known values."""
    if len(lr) <= FIRST_ROWS:
        return []
    gaps = np.diff(steps, prepend=steps[:1] - 1).astype(np.float64)
    floor = np.maximum(np.maximum.accumulate(lr) * 1e-9, np.finfo(np.float64).tiny)
    log = np.log(np.maximum(lr, floor))
    moved, moved_log = (np.abs(np.diff(x, prepend=x[:1])) for x in (lr, log))
    usual = _usual(moved / gaps, MEMORY) * gaps
    usual_log = _usual(moved_log / gaps, FIRST_ROWS) * gaps
    before = np.concatenate([lr[:1], lr[:-1]])
    jump = moved > TIMES * usual + RELATIVE * before
    jump &= moved_log > TIMES_LOG * usual_log + RELATIVE
    return [int(at) for at in np.flatnonzero(jump)]


def _usual(rate: Floats, rows: int) -> Floats:
    """Largest step per step of training over the rows before; NaN while too few are known."""
    return delay(trailing_max(rate, rows, min_rows=FIRST_ROWS), 1)


def _is_regular(steps: npt.NDArray[np.int64]) -> bool:
    """Whether the jumps come at equal distances: a schedule that moves once an epoch."""
    gaps = np.diff(steps)
    return len(gaps) >= 2 and bool(np.ptp(gaps) <= 2)


def _finding(lr: Floats, steps: npt.NDArray[np.int64], at: int, regular: bool) -> Finding:
    before, now, step = float(lr[at - 1]), float(lr[at]), int(steps[at])
    why, severity = _judge(lr, at)
    if regular:
        why, severity = "as it does at equal distances", "change"
    factor = f"{now / before:.3g} times" if before > 0 else "from zero,"
    text = (
        f"The learning rate went from {before:.4g} to {now:.4g} at step {step}, {factor} the value "
        f"before, {why}; nobody declared it."
    )
    score = abs(float(np.log(max(now, before * 1e-9) / before))) / RELATIVE if before > 0 else 1e6
    return Finding(
        step=step,
        interval=(step, step),
        kind="lr_jump" if severity == "bad" else "lr_milestone",
        confidence=0.97 if severity == "bad" else 0.8,
        severity=severity,
        evidence=(text,),
        top_metrics=(MetricScore(metric="lr", score=score, step=step),),
    )


def _judge(lr: Floats, at: int) -> tuple[str, str]:
    """What a jump looks like, and its severity."""
    before, now, after = lr[at - 1], lr[at], lr[at : at + AHEAD]
    if now <= before * VANISHED:
        return "all but nothing", "bad"
    size = abs(np.log(now) - np.log(before)) if before > 0 else np.inf
    positive = after[after > 0]
    if before > 0 and np.any(np.abs(np.log(positive) - np.log(before)) < size / 4):
        return "and came back within a few steps", "bad"
    if now < before:
        rises = np.diff(after)
        if len(rises) >= 3 and np.all(rises > 0) and after[-1] > 1.05 * now:
            return "and climbs from there like a warm-up that began again", "bad"
        return "and held, as at a milestone", "change"
    peak = float(np.max(lr[:at]))  # a warm-up may have hidden the top of the first cycle
    if 0.8 * peak < now < 1.6 * peak and before < 0.2 * peak:
        return "back to its earlier peak, as at a warm restart", "change"
    return "a rise that no schedule of this run explains", "bad"
