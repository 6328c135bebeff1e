"""Outcomes for tests."""

from __future__ import annotations

from typing import Any

from flashback_core.forensics.outcomes import RunOutcome

BASE: dict[str, Any] = {
    "detector": "a", "run_id": "x__s6", "role": "fault", "kind": "bit_flip", "kind_set": "seed",
    "split": "test", "family": "gpt", "optimizer": "adamw", "is_held_out": False,
    "is_undeclared": False, "has_event": False, "visibility": 20.0, "n_steps": 400,
    "first_bad_step": 100, "injected_step": 100, "found": 100, "found_near": 100, "low": 99,
    "high": 101, "confidence": 0.95, "found_kind": "lr_jump", "is_attributed": None,
    "alarm": 103, "n_bad": 1, "n_bad_found": 1, "healthy_steps": 98, "false_alarms": 0,
    "changes": 0, "cpu_us": 40.0,
}  # fmt: skip
MISS = {"found": None, "found_near": None, "low": None, "high": None, "alarm": None,
        "n_bad_found": 0}  # fmt: skip
HEALTHY = {"role": "healthy", "kind": "plain", "kind_set": "healthy", "first_bad_step": None,
           "injected_step": None, "n_bad": 0, "healthy_steps": 50_000} | MISS  # fmt: skip


def outcome(**changes: Any) -> RunOutcome:
    """An outcome like `BASE`."""
    return RunOutcome(**{**BASE, **changes})
