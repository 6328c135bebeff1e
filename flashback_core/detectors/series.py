"""Series: all that the detector knows of one optimizer's rows, as they come."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from flashback_core.detectors.attribution import CauseModel
from flashback_core.detectors.calibration import Confidence
from flashback_core.detectors.merging import SAME, merged, merged_certain, with_learning
from flashback_core.detectors.rules import CertainRules
from flashback_core.detectors.signature import signs_of
from flashback_core.detectors.statistic_stream import AFTER_BAD, StatisticStream
from flashback_core.report.model import Finding, finding_dict, finding_of, strict_json
from flashback_core.table import StepTable

__all__ = ["Series"]

SLOW = frozenset({"divergence", "gradient_explosion", "never_learns"})
"""Kinds that a fault ends in, or that are the last resort."""
MOST_ODD = 5
"""Odd batches that a report names; they are information."""
_CHUNK = 4096
"""Rows that are handed on at a time, which bounds the memory."""

Floats = npt.NDArray[np.float64]
Events = Sequence[Mapping[str, Any]]


class Series:
    """The findings of one series of rows: certain rules, then statistics.

    Args:
        names: Columns of the rows.
        levels: Level of each statistic; one without a level has no say.
        confidence: Confidence in a statistical finding, by ratio and belief.
        scale: A statistic speaks from so many times its level on.
        causes: What names likely causes of bad findings; None names none.
    """

    def __init__(
        self,
        names: tuple[str, ...],
        levels: Mapping[str, float],
        confidence: Confidence,
        scale: float = 1.0,
        causes: CauseModel | None = None,
    ) -> None:
        self._causes = causes
        self.rules = CertainRules()
        self.statistics = StatisticStream(names, levels, self.rules.masked, confidence.of, scale)
        self._certain: list[Finding] = []
        self._found: list[Finding] = []
        self._bad: list[int] = []  # rows of bad certain findings
        self._ahead: list[int] = []  # steps that the rules have seen and the statistics have not

    def update(self, table: StepTable, events: Events = ()) -> list[Finding]:
        """Take the next rows; return what is new."""
        new: list[Finding] = []
        for start in range(0, len(table), _CHUNK):
            part = table[start : start + _CHUNK] if len(table) > _CHUNK else table
            new += self.look(part, events)
            new += self.measure(part)
        return new

    def look(self, table: StepTable, events: Events = ()) -> list[Finding]:
        """The certain rules alone; `measure` must be given the same rows later."""
        self._ahead += table.steps.tolist()
        return self._take(self.rules.update(table, events))

    def measure(self, table: StepTable) -> list[Finding]:
        """The statistics alone, of rows that the rules have seen."""
        del self._ahead[: len(table)]
        return self._statistical(self.statistics.update(table, tuple(self._bad)))

    def finish(self) -> list[Finding]:
        """What still waited for more rows."""
        certain = self._take(self.rules.finish())
        return certain + self._statistical(self.statistics.finish(tuple(self._bad)))

    def learn(self, table: StepTable, events: Events = ()) -> None:
        """Take rows that were judged before; what they hold is old news."""
        self.update(table, events)
        self._certain.clear()
        self._found.clear()

    def values(self, table: StepTable, events: Events = ()) -> Floats:
        """Every statistic at the rows of `table`, which come next; 0 where it has no say."""
        parts = [np.zeros((len(self.statistics.names), 0))]
        for start in range(0, len(table), _CHUNK):
            part, first = table[start : start + _CHUNK], self.statistics.n_rows
            self.look(part, events)
            values = self.statistics.values(part)
            self._ahead.clear()
            parts.append(self.statistics.silenced(values, first))
        return np.concatenate(parts, axis=1)

    def state(self) -> dict[str, Any]:
        """All that later findings depend on: text and arrays by name."""
        plain = {
            "rules": self.rules.state(),
            "bad": self._bad,
            "ahead": self._ahead,
            "certain": [finding_dict(f) for f in self._certain],
            "found": [finding_dict(f) for f in self._found],
        }
        arrays = {f"statistics/{k}": v for k, v in self.statistics.state().items()}
        return {"series": json.dumps(strict_json(plain)), **arrays}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from `state`."""
        plain = json.loads(str(state["series"]))
        self.rules = CertainRules.restore(plain["rules"])
        self.statistics.masks = self.rules.masked
        self._bad, self._ahead = plain["bad"], plain["ahead"]
        self._certain = [finding_of(f) for f in plain["certain"]]
        self._found = [finding_of(f) for f in plain["found"]]
        mine = "statistics/"
        self.statistics.restore({k[len(mine) :]: v for k, v in state.items() if k.startswith(mine)})

    def findings(self) -> list[Finding]:
        """Everything found so far, merged: several signs of one fault are one finding."""
        slow = [f for f in self._certain if f.kind in SLOW]
        found = merged_certain([f for f in self._certain if f.kind not in SLOW])
        is_certain = any(f.severity == "bad" for f in found)
        odd = [f for f in self._found if f.severity != "bad"]
        for finding in self._found:
            if finding.severity == "bad" and not self._follows(finding, found):
                found = merged(found, finding)
        found = with_learning([*found, *odd[:MOST_ODD]], slow, certain=is_certain)
        return [self._explained(f) for f in found]

    def signature(self, finding: Finding) -> tuple[frozenset[str], Floats | None]:
        """Signs of everything found near a finding's step, and what the metrics did there."""
        near = [f for f in (*self._certain, *self._found) if abs(f.step - finding.step) <= SAME]
        sharp = [f for f in near if f.kind not in SLOW]
        return signs_of(sharp or near or [finding]), self.statistics.numbers.get(finding.step)

    def _explained(self, finding: Finding) -> Finding:
        """The finding with its likely causes."""
        if self._causes is None or finding.severity != "bad":
            return finding
        return replace(finding, causes=self._causes.causes(*self.signature(finding)))

    def _follows(self, finding: Finding, found: Sequence[Finding]) -> bool:
        """Whether a statistical finding comes soon after a certain one, and so from it."""
        return any(
            f.severity == "bad" and f.step + SAME < finding.step < f.step + AFTER_BAD for f in found
        )

    def _take(self, found: list[Finding]) -> list[Finding]:
        for finding in found:
            if finding.severity == "bad" and finding.kind not in SLOW:
                self._bad.append(self._row_of(finding.step))
                self.statistics.watch(self._bad[-1], finding.step)
        del self._bad[:-64]
        self._certain += found
        return [self._explained(f) for f in found]

    def _statistical(self, found: list[Finding]) -> list[Finding]:
        self._found += found
        return [self._explained(f) for f in found]

    def _row_of(self, step: int) -> int:
        """Row of a step among those that the rules have seen."""
        if self._ahead and step >= self._ahead[0]:
            return self.statistics.n_rows + bisect_left(self._ahead, step)
        return self.statistics.row_of(step)
