"""A gradient norm far beyond anything before."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from flashback_core.report.model import Finding
from flashback_core.table import MemoryTable
from tests.core.detectors.rules_on import ENDS, said

NORMS = np.exp(0.3 * np.random.default_rng(4).standard_normal(60))


def found(norm: npt.ArrayLike) -> list[Finding]:
    """Findings on a gradient norm logged every hundred steps."""
    return said(MemoryTable(100 * np.arange(60), {"grad_norm": norm}), ENDS)


@pytest.mark.parametrize("rate", [10.0, 1e6])
def test_an_explosion_early_in_a_sparse_log(rate: float) -> None:
    """A norm that multiplies from a row on and stays large is dated to where that began."""
    norm = NORMS * np.minimum(rate ** np.maximum(np.arange(60.0) - 27, 0), 1e9)
    (finding,) = found(norm)
    assert 2700 <= finding.step <= 2900
    assert (finding.kind, finding.severity) == ("gradient_explosion", "bad")


def test_spikes_and_growth_are_none() -> None:
    """A single huge norm, slow growth, a start from next to nothing and holes are no explosion."""
    spike = NORMS.copy()
    spike[30] = 1e12
    start = NORMS * np.where(np.arange(60) < 4, 1e-9, 1.0)
    holes = NORMS.copy()
    holes[[5, 20, 40]] = np.nan, np.inf, 0.0
    for norm in (NORMS, spike, NORMS * 1.05 ** np.arange(60), start, holes):
        assert found(norm) == []


def test_little_to_go_by() -> None:
    """A short log, or none of the norm, is no finding."""
    assert said(MemoryTable([0, 1], {"grad_norm": [1.0, 1e9]}), ENDS) == []
    assert said(MemoryTable([0, 1], {"loss": [1.0, 1e9]}), ENDS) == []
