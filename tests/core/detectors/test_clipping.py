"""The rule on clipping: what the loop's own clipping leaves of the gradient."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from flashback_core.detectors.rules import CertainRules
from flashback_core.report.model import Finding
from flashback_core.table import MemoryTable

N = 300
Floats = npt.NDArray[np.float64]
NORM = np.exp(0.5 * np.random.default_rng(0).standard_normal(N))


def clipped(limit: npt.ArrayLike, norm: Floats = NORM) -> Floats:
    """Factors of clipping to `limit`."""
    return np.minimum(1.0, np.asarray(limit) / norm)


def found(
    factor: Floats, size: int = N, events: tuple[dict[str, object], ...] = ()
) -> list[Finding]:
    """Findings on these factors, in chunks of `size`."""
    table = MemoryTable(np.arange(N), {"grad_norm": NORM, "exact:clip_coef": factor})
    rules = CertainRules(only=["clipping"])
    out: list[Finding] = []
    for i in range(0, N, size):
        out += rules.update(table[i : i + size], events)
    return out


@pytest.mark.parametrize("size", [1, 16, N])
def test_clipping_that_stops(size: int) -> None:
    """From the first step that would have been clipped and was not."""
    (finding,) = found(np.where(np.arange(N) < 150, clipped(0.4), 1.0), size)
    first = 150 + int(np.argmax(NORM[150:] > 1.05 * 0.4))
    assert (finding.step, finding.kind, finding.severity) == (first, "clip_dropped", "bad")


@pytest.mark.parametrize("size", [1, 16, N])
def test_another_limit_is_a_change(size: int) -> None:
    """Clipped to another norm: somebody's setting, to be told and not to be feared."""
    (finding,) = found(clipped(np.where(np.arange(N) < 150, 0.7, 0.1)), size)
    assert (finding.kind, finding.severity) == ("clip_changed", "change")
    assert 150 <= finding.step <= 153


def test_healthy() -> None:
    """Clipping that binds now and then, by value, not at all, or is not known: nothing."""
    rng = np.random.default_rng(1)
    assert found(clipped(3.0)) == []
    assert found(np.ones(N)) == []
    assert found(rng.uniform(0.3, 0.9, N)) == []
    assert found(np.full(N, np.nan)) == []


def test_a_raised_limit_is_not_feared() -> None:
    """Norms a little over the old limit that pass say nothing; declared, not even large ones."""
    raised = np.where(np.arange(N) < 150, 0.7, 1.2)
    assert {f.severity for f in found(clipped(raised))} <= {"change"}
    event = {"event": "expect", "step": 150, "kind": "clip"}
    for limit in (1.2, 1e9):
        assert found(clipped(np.where(np.arange(N) < 150, 0.4, limit)), N, (event,)) == []


def test_declared() -> None:
    """A declared change of clipping is excused."""
    event = {"event": "expect", "step": 150, "kind": "clip"}
    assert found(clipped(np.where(np.arange(N) < 150, 0.7, 0.1)), N, (event,)) == []
