"""Rules that need no baseline, over the rows of a run as they come; see `engine`."""

from __future__ import annotations

from flashback_core.detectors.rules.engine import OUTCOMES, RULES, CertainRules

__all__ = ["OUTCOMES", "RULES", "CertainRules"]
