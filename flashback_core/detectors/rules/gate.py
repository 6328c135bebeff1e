"""Gate: one look at all columns of a view that says which rules have nothing to do."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from flashback_core.detectors.rules.rule import Rule
from flashback_core.detectors.rules.view import Floats, View

__all__ = ["Gate"]


class Gate:
    """The ranges within which no rule has anything to do, column by column."""

    def __init__(self) -> None:
        self._low: Floats = np.empty(0)
        self._high: Floats = np.empty(0)
        self._rules: dict[int, list[str]] = {}

    def odd(self, view: View, rules: Mapping[str, Rule]) -> set[str]:
        """Names of the rules for which some value of the view is not quiet."""
        if any(rule.is_stale for rule in rules.values()):
            self._renew(view, rules)
        inside = (view.matrix >= self._low) & (view.matrix <= self._high)
        if inside.all():
            return set()
        rows = np.flatnonzero(~inside.all(axis=1)).tolist()
        return {name for row in rows for name in self._rules.get(row, ())}

    def _renew(self, view: View, rules: Mapping[str, Rule]) -> None:
        n = len(view.layout.names)
        self._low, self._high = np.full((n, 1), -np.inf), np.full((n, 1), np.inf)
        self._rules = {}
        for name, rule in rules.items():
            rule.is_stale = False
            for column, (low, high) in rule.quiet().items():
                row = view.layout.row.get(column)
                if row is not None:
                    self._low[row] = max(self._low[row, 0], low)
                    self._high[row] = min(self._high[row, 0], high)
                    self._rules.setdefault(row, []).append(name)
