"""Mechanisms: every fault kind has one."""

from __future__ import annotations

from flashback_core import faults
from flashback_core.forensics.mechanisms import MECHANISMS


def test_every_fault_kind_has_a_mechanism() -> None:
    """All kinds alike, but placebos, which leave no sign."""
    kinds = {k for k in faults.kinds() if faults.kind_of(k).family != "placebo"}
    assert set(MECHANISMS) == kinds
    assert all(alternatives and all(alternatives) for alternatives in MECHANISMS.values())
