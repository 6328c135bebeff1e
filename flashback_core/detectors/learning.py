"""Does the loss learn at all, and does it keep what it learnt?

Two absolute checks on the loss alone, for logs that hold little else. `never_learns`: the loss does
not fall below its start, so there is no healthy stretch to compare with. `divergence`: the loss
gave back more than half of all that it had gained, however slowly, which no trailing baseline
shows.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from flashback_core.baseline import MAD_TO_SIGMA, fill_forward, trailing_median
from flashback_core.bounds import bounded
from flashback_core.report.model import Finding, MetricScore
from flashback_core.table import StepTable

__all__ = ["learning_findings"]

Floats = npt.NDArray[np.float64]

SMOOTH = 5
"""Rows of the median that stands for the loss."""
ROWS_DENSE, ROWS_SPARSE = 100, 20
"""Rows before a run of single steps, and one of sparse logs, can be said to learn nothing."""
GIVEN_BACK = 0.5
"""Share of the gain whose loss is a divergence."""
CLEAR = 4.0
"""Robust deviations of one loss that a gain must have to be one, and its loss likewise."""
SMALL_GAIN = 0.05
"""Share of the first loss below which a gain is none yet."""
SLIGHT = 0.1
"""Share of the whole climb up to which it has not begun."""
HOLDS = 5
"""Rows for which a divergence must hold."""


def learning_findings(table: StepTable) -> list[Finding]:
    """`never_learns` or `divergence`, or nothing."""
    if "loss" not in table:
        return []
    loss = bounded(table.column("loss"))
    known = np.isfinite(loss)
    loss, steps = loss[known], table.steps[known]
    if len(loss) < 2 * SMOOTH:
        return []
    smooth = trailing_median(loss, SMOOTH)[SMOOTH - 1 :]
    noise = MAD_TO_SIGMA * float(np.median(np.abs(np.diff(loss)))) / np.sqrt(2.0)
    found = (*_never(loss, smooth, noise, steps), *_diverges(smooth, _noise(loss), steps))
    return list(found[:1])


def _never(
    loss: Floats, smooth: Floats, noise: float, steps: npt.NDArray[np.int64]
) -> Iterator[Finding]:
    dense = bool(np.median(np.diff(steps)) == 1)
    if len(loss) < (ROWS_DENSE if dense else ROWS_SPARSE):
        return
    start, size = float(smooth[0]), max(abs(float(smooth[0])), 1e-12)
    gain = start - float(smooth[1:].min())
    rose = float(np.median(smooth[len(smooth) // 2 :])) - start
    climbs = gain <= noise and rose > 3 * noise
    flat = gain <= 0.01 * size and gain <= 4 * noise / np.sqrt(SMOOTH) and noise < 0.01 * size
    if not (climbs or flat):
        return
    first, last = int(steps[0]), int(steps[-1])
    text = (
        f"The loss never fell below its start: {start:.4g} at step {first}, "
        f"{float(smooth[-1]):.4g} at step {last}, best {float(smooth.min()):.4g}."
    )
    yield _loss_finding(first, (first, first), "never_learns", 0.8, text, rose / max(noise, 1e-12))


def _noise(loss: Floats) -> Floats:
    """Robust deviation of the loss in the rows so far, for each row of the median."""
    moved = np.abs(np.diff(loss)) / np.sqrt(2.0)
    return MAD_TO_SIGMA * fill_forward(trailing_median(moved, 64, min_rows=8))[SMOOTH - 2 :]


def _diverges(smooth: Floats, noise: Floats, steps: npt.NDArray[np.int64]) -> Iterator[Finding]:
    """The first rows where more than `GIVEN_BACK` of the gain is lost, and stays lost."""
    best = np.minimum.accumulate(smooth)
    gain = smooth[: SMOOTH + 1].max() - best
    lost = smooth - best
    bad = (lost > GIVEN_BACK * gain) & (gain > CLEAR * noise) & (lost > CLEAR * noise)
    bad &= gain > SMALL_GAIN * np.abs(smooth[0])
    run = np.convolve(bad, np.ones(HOLDS), "full")[: len(bad)]
    ends = np.flatnonzero(run >= HOLDS)
    if not len(ends):
        return
    alarm = int(ends[0])
    low = int(np.argmin(smooth[: alarm + 1]))
    slight = max(float(noise[low]), SLIGHT * float(lost[alarm]))
    climb = np.flatnonzero(lost[low : alarm + 1] <= slight) + low
    at = int(climb[-1]) + 1
    # row i of `smooth` is the median of rows i … i + 4, so a step shows up two rows late
    first, step, last = (int(steps[min(i, len(steps) - 1)]) for i in (low, at + 2, alarm + 4))
    text = (
        f"The loss climbed from {best[alarm]:.4g} to {smooth[alarm]:.4g} by step {last}: more than "
        f"half of what the run had learnt is lost; the climb began near step {step}."
    )
    score = float(lost[alarm] / (noise[low] + 1e-12))
    yield _loss_finding(step, (min(first, step), last), "divergence", 0.8, text, score)


def _loss_finding(
    step: int, interval: tuple[int, int], kind: str, confidence: float, text: str, score: float
) -> Finding:
    return Finding(
        step=step, interval=interval, kind=kind, confidence=confidence, severity="bad",
        evidence=(text,), top_metrics=(MetricScore(metric="loss", score=score, step=step),),
    )  # fmt: skip
