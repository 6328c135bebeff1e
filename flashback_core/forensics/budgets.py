"""Nominal against measured budget: false alarms that a detector promises, and those it raises.

A detector with a budget states how many false alarms it allows per 100 000 healthy steps, and gives
by ``score_ratio_at(budget)`` the score that is an alarm at another budget (or by
``at_budget(budget)`` the detector with that budget). Only the statistics have a budget: certain
findings are not counted here. Detectors without one have no such table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from flashback_core.detectors.base import Detector
from flashback_core.errors import DetectorError
from flashback_core.evaluate import average_run_length, episodes, false_alarm_rate
from flashback_core.forensics.intervals import poisson
from flashback_core.table import StepTable

__all__ = ["BUDGETS", "alarms_at_budgets", "budget_rows"]

Floats = npt.NDArray[np.float64]

BUDGETS = (1, 10, 100)
"""Nominal false alarms per 100 000 healthy steps at which a detector is scored."""


def alarms_at_budgets(
    detector: Detector, table: StepTable, score: Floats | None, healthy: npt.NDArray[np.int64]
) -> dict[str, int]:
    """Episodes of alarms among some steps, at each of `BUDGETS`.

    Args:
        detector: Any detector.
        table: The run.
        score: Its score, one value per row; None is computed where it is needed.
        healthy: Steps at which nothing is wrong.

    Returns:
        Episodes (alarms more than 50 steps apart) by budget as text; empty for a detector without
        a budget.
    """
    if not hasattr(detector, "at_budget"):
        return {}
    rows = np.isin(table.steps, healthy)
    try:
        alarmed = {budget: _alarmed(detector, table, score, budget) for budget in BUDGETS}
    except DetectorError:  # its thresholds were given by hand: no budget moves them
        return {}
    return {f"{budget:g}": episodes(table.steps[a & rows]) for budget, a in alarmed.items()}


def _alarmed(
    detector: Any, table: StepTable, score: Floats | None, budget: float
) -> npt.NDArray[np.bool_]:
    ratio = getattr(detector, "score_ratio_at", None)
    if ratio is None or score is None:
        return np.asarray(np.asarray(detector.at_budget(budget).score(table)) >= 1.0)
    return np.asarray(score >= float(ratio(budget)))


class _Judged(Protocol):
    """What the table needs of an outcome."""

    @property
    def at_budget(self) -> Mapping[str, int]:
        """Episodes by budget."""

    @property
    def healthy_steps(self) -> int:
        """Steps at which nothing is wrong."""


def budget_rows(groups: Mapping[str, Sequence[_Judged]]) -> list[dict[str, Any]]:
    """The table: measured rate, interval, ratio to the nominal rate and ARL0, by group and budget.

    Args:
        groups: Outcomes by name of the group; those without budgets are left out.
    """
    out = []
    for name, outcomes in groups.items():
        found = [o for o in outcomes if o.at_budget]
        steps = sum(o.healthy_steps for o in found)
        if steps:
            out += [_row(name, b, len(found), steps, _total(found, b)) for b in BUDGETS]
    return out


def _total(found: Sequence[_Judged], budget: float) -> int:
    return sum(o.at_budget.get(f"{budget:g}", 0) for o in found)


def _row(name: str, budget: float, n: int, steps: int, alarms: int) -> dict[str, Any]:
    low, high = poisson(alarms, steps / 100_000)
    rate = false_alarm_rate(alarms, steps)
    return {
        "name": name, "budget": budget, "n": n, "steps": steps, "episodes": alarms, "rate": rate,
        "rate_interval": (low, high), "ratio": rate / budget,
        "ratio_interval": (low / budget, high / budget),
        "arl0": average_run_length(alarms, steps),
    }  # fmt: skip
