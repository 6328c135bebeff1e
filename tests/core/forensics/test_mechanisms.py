"""Mechanisms: every fault kind has one."""

from __future__ import annotations

from flashback_core import faults
from flashback_core.detectors.attribution import load_causes
from flashback_core.detectors.first_bad_step import SHIPPED
from flashback_core.forensics.mechanisms import MECHANISMS


def test_every_fault_kind_has_a_mechanism() -> None:
    """All kinds alike, but placebos, which leave no sign."""
    kinds = {k for k in faults.kinds() if faults.kind_of(k).family != "placebo"}
    assert set(MECHANISMS) == kinds
    assert all(alternatives and all(alternatives) for alternatives in MECHANISMS.values())


def test_the_shipped_detector_knows_them() -> None:
    """They are written by hand, so a fit takes them over as they are."""
    model = load_causes(SHIPPED)
    assert model is not None
    assert model.mechanisms == MECHANISMS
