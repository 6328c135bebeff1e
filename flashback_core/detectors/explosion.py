"""A gradient norm far beyond anything it was before: an absolute check for short and sparse logs.

Where a log has a row per hundred steps, a gradient can explode before the statistics have the rows
that they need. A norm that stays a thousand times over its largest earlier value needs no baseline.
"""

from __future__ import annotations

import numpy as np

from flashback_core.baseline import trailing_median
from flashback_core.bounds import bounded
from flashback_core.report.model import Finding, MetricScore
from flashback_core.table import StepTable

__all__ = ["explosion_findings"]

SMOOTH = 5
"""Rows of the median that stands for the norm, and between it and what it is compared with."""
TIMES = 1000.0
"""How far over everything before the norm must stay."""
BEGINS = 3.0
"""How far over everything before the climb begins."""
FIRST_ROWS = 8
CONFIDENCE = 0.9


def explosion_findings(table: StepTable) -> list[Finding]:
    """The first rows whose gradient norm stays `TIMES` over all that came before, if any."""
    if "grad_norm" not in table:
        return []
    norm = bounded(table.column("grad_norm"))
    usable = np.isfinite(norm) & (norm > 0)
    norm, steps = norm[usable], table.steps[usable]
    if len(norm) < FIRST_ROWS + SMOOTH:
        return []
    smooth = trailing_median(norm, SMOOTH)[SMOOTH - 1 :]
    before = np.maximum.accumulate(norm)[: -SMOOTH + 1]
    exploded = np.flatnonzero(smooth[1:] > TIMES * before[:-1]) + 1
    exploded = exploded[exploded >= FIRST_ROWS]
    if not len(exploded):
        return []
    # row i of `smooth` covers the rows i … i + 4, and `before[i - 1]` all rows up to i - 1
    row = int(exploded[0])
    largest = float(before[row - 1])
    calm = np.flatnonzero(norm[: row + SMOOTH] <= BEGINS * np.median(norm[:row]))
    begin = min(int(calm[-1]) + 1, row + SMOOTH - 1)
    step, last = int(steps[begin]), int(steps[row + SMOOTH - 1])
    text = (
        f"The gradient norm rose to {smooth[row]:.3g} by step {last} and stayed there, more than "
        f"{TIMES:g} times anything before ({largest:.3g}); the climb began near step {step}."
    )
    score = float(smooth[row] / largest)
    return [
        Finding(
            step=step, interval=(step, last), kind="gradient_explosion", confidence=CONFIDENCE,
            severity="bad", evidence=(text,),
            top_metrics=(MetricScore(metric="grad_norm", score=score, step=step),),
        )
    ]  # fmt: skip
