"""Urgent: a look at one row that costs next to nothing."""

from __future__ import annotations

from collections.abc import Mapping
from operator import le

from flashback_core.detectors.row_block import RowView
from flashback_core.detectors.rules.batches import Labels
from flashback_core.detectors.rules.contents import Contents
from flashback_core.detectors.rules.counters import OptimizerSteps, ScheduleStep
from flashback_core.detectors.rules.jumps import RELATIVE
from flashback_core.detectors.rules.kept import KeptGradients
from flashback_core.detectors.rules.nonfinite import NonFinite
from flashback_core.detectors.rules.outside import Outside, Settings
from flashback_core.detectors.rules.rule import Rule
from flashback_core.detectors.rules.schedule import SAME_RATIO, SCHEDULED, TINY, OffSchedule

__all__ = ["Urgent"]

LARGE = 1.7e308
TWICE = 2.0
"""A step of the rate that is so many times the one before may be a jump."""
_NORMS = ("update_norm", "grad_norm")
_EVERY = (
    ("exact:step_skipped", 0.0, 0.0, 0.0),
    ("exact:duplicates", -1.0, 0.0, 0.0),
)


class Urgent:
    """Ranges of the columns that matter at once, as the rules stand now.

    Counters and the rate are compared with the row before, which is the last one given to the rules
    or, after it, the last one asked about.

    Args:
        rules: The rules by name.
        last: The last row given to them, by column.
        moved: Size of the rate's last step.
    """

    def __init__(
        self, rules: Mapping[str, Rule], last: Mapping[str, float], moved: float = 0.0
    ) -> None:
        ranges = [*_EVERY, *(r for rule in rules.values() for r in _ranges(rule))]
        self._ranges = sorted(ranges, key=lambda r: r[0].startswith("exact:"))
        self._columns = tuple((name, usual) for name, _, _, usual in self._ranges)
        self._low, self._high = [r[1] for r in self._ranges], [r[2] for r in self._ranges]
        self._most = {k: n for rule in rules.values() for k, n in _growth(rule) if k in last}
        self._counts = {name: last[name] for name in self._most}
        self._rate, self._moved = last.get("lr", 0.0), moved
        settings, schedule = rules.get("settings"), rules.get("off_schedule")
        self._digest = settings.digest if isinstance(settings, Settings) else 0
        is_known = isinstance(schedule, OffSchedule) and not schedule.is_silent
        self._ratio = schedule.ratio if is_known and isinstance(schedule, OffSchedule) else None

    def is_urgent(self, row: Mapping[str, float] | RowView) -> bool:
        """Whether a value lies outside of its range; NaN always does."""
        get = row.get
        if isinstance(row, RowView):
            values = row.of(self._columns)
            if not (all(map(le, self._low, values)) and all(map(le, values, self._high))):
                return True
        else:
            for name, low, high, usual in self._ranges:
                if not low <= get(name, usual) <= high:
                    return True
        digest = get("exact:config_hash", 0)
        moved = self._counts_moved(row) | self._rate_moved(row)
        return moved or bool(digest and self._digest and digest != self._digest)

    def _counts_moved(self, row: Mapping[str, float] | RowView) -> bool:
        out = False
        for name, most in self._most.items():
            before = self._counts[name]
            self._counts[name] = now = row.get(name, before)
            out = out or not 0 <= now - before <= most
        return out

    def _rate_moved(self, row: Mapping[str, float] | RowView) -> bool:
        before, self._rate = self._rate, row.get("lr", self._rate)
        usual, self._moved = self._moved, abs(self._rate - before)
        if self._moved > max(RELATIVE * before, TWICE * usual):
            return True
        planned = row.get(SCHEDULED)
        if planned is None or self._ratio is None:
            return False
        return bool(abs(self._rate - self._ratio * planned) > SAME_RATIO * self._rate + TINY)


def _growth(rule: Rule) -> list[tuple[str, int]]:
    """Most that a counter may grow by."""
    if isinstance(rule, ScheduleStep) and rule.by is not None and not rule.is_silent:
        return [(rule.field, rule.by or max(rule.amount, 1))]
    if isinstance(rule, OptimizerSteps) and rule.by and not rule.is_silent:
        return [(rule.field, rule.by)]
    return []


def _ranges(rule: Rule) -> list[tuple[str, float, float, float]]:
    if isinstance(rule, NonFinite):
        counts = ("nonfinite", *(n for n in rule.gated if n.endswith("update_nonfinite")))
        there = [n for n in ("loss", *_NORMS) if _is_there(rule, n)]
        return [(n, -LARGE, 0.0, 0.0) for n in counts] + [(n, -LARGE, LARGE, 0.0) for n in there]
    if isinstance(rule, Outside) and rule.habits == 0:
        return [("exact:outside", -1.0, 0.0, 0.0)]
    if rule.is_silent:
        return []
    if isinstance(rule, (KeptGradients, Contents)):
        return [(rule.column, -1.0, 0.0, 0.0)] if rule.is_ready else []
    if isinstance(rule, Labels) and rule.usual is not None:
        return [("exact:labels", float(rule.usual), float(rule.usual), float(rule.usual))]
    return [("exact:batch_seen", -LARGE, -0.5, -1.0)] if "exact:batch_seen" in rule.gated else []


def _is_there(rule: NonFinite, name: str) -> bool:
    return name in rule.presence and rule.presence[name].is_there
