"""Some rules alone on a whole table, for tests."""

from __future__ import annotations

from collections.abc import Sequence

from flashback_core.detectors.rules import OUTCOMES, RULES, CertainRules
from flashback_core.report.model import Finding
from flashback_core.table import StepTable

HARD = ("nonfinite", "skip_loop", "loss_zero", "stopped", "started")
RATE = ("lr", "shape", "off_schedule", "schedule_step")
INVARIANTS = tuple(name for name in RULES if name not in (*HARD, *RATE))
ENDS = tuple(OUTCOMES)


def said(table: StepTable, names: Sequence[str]) -> list[Finding]:
    """Findings of the rules `names` on `table`, in the order of their steps."""
    rules = CertainRules(only=list(names))
    found = rules.update(table, table.events) + rules.finish()
    return sorted(found, key=lambda f: f.step)
