"""Does the loss learn, and does it keep what it learnt?"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from flashback_core.report.model import Finding
from flashback_core.table import MemoryTable
from tests.core.detectors.rules_on import ENDS, said

Floats = npt.NDArray[np.float64]
T = np.arange(400, dtype=np.float64)
NOISE = np.random.default_rng(2).standard_normal(400)


def found(loss: Floats, every: int = 1, declared: int | None = None) -> list[Finding]:
    """Findings on a loss logged at each `every`-th step, with a change declared at a step."""
    events = [] if declared is None else [{"event": "expect", "step": declared, "kind": "data"}]
    steps = every * np.arange(len(loss))
    return said(MemoryTable(steps, {"loss": loss}, events=events), ENDS)


@pytest.mark.parametrize("noise", [0.0, 0.02, 0.3])
def test_learning_is_healthy(noise: float) -> None:
    """A loss that falls, fast or slowly, smooth or noisy, is no finding."""
    for scale in (20, 400):
        assert found(1.5 + 2 * np.exp(-T / scale) + noise * NOISE) == []


def test_noisy_plateaus_are_healthy() -> None:
    """A noisy loss that goes nowhere, as in a run resumed late, is no finding."""
    assert found(1.8 + 0.2 * NOISE) == []


@pytest.mark.parametrize("loss", [np.full(400, 0.6931), 2.3 + 0.002 * T + 0.01 * NOISE])
def test_never_learns(loss: Floats) -> None:
    """A constant or rising loss is bad from the first logged step."""
    (finding,) = found(loss)
    assert (finding.step, finding.kind, finding.severity) == (0, "never_learns", "bad")


def test_too_early_to_say() -> None:
    """A hundred single steps, or twenty of a sparse log, are needed to say so."""
    flat = np.full(30, 0.6931)
    assert found(flat) == []
    assert found(flat, every=100)[0].kind == "never_learns"
    assert found(flat[:8], every=100) == []


def test_slow_divergence_is_dated_to_its_beginning() -> None:
    """A loss that gives back half of its gain over hundreds of steps began where it turned."""
    loss = 1.5 + 2 * np.exp(-T / 40) + 0.02 * NOISE
    loss[200:] += 0.01 * (T[200:] - 200)
    (finding,) = found(loss)
    assert finding.kind == "divergence"
    assert finding.interval[0] <= 205
    assert 195 <= finding.step <= 225


def test_other_data_have_another_loss() -> None:
    """A loss that a declared change lifts for good has given nothing back, then or later."""
    loss = 1.5 + 2 * np.exp(-T / 40) + 0.2 * NOISE
    loss[200:] += 0.9
    loss[330:345] += 0.4
    assert [f.kind for f in found(loss)] == ["divergence"]
    assert found(loss, declared=200) == []


@pytest.mark.parametrize("declared", [64, 70, 100])
def test_what_is_gained_after_a_declared_change_can_be_lost(declared: int) -> None:
    """It is judged by its own gain, and dated as ever."""
    loss = 1.5 + 2 * np.exp(-T / 40) + 0.02 * NOISE
    loss[declared:] = 3 + 2 * np.exp(-(T[declared:] - declared) / 40) + 0.02 * NOISE[declared:]
    loss[300:] += 0.05 * (T[300:] - 300)
    (finding,) = found(loss, declared=declared)
    assert finding.kind == "divergence"
    assert 295 <= finding.step <= 310


def test_a_fresh_loss_after_a_declared_change_is_no_start() -> None:
    """Whether a run ever learns is judged by all of it."""
    assert found(np.concatenate([np.linspace(3, 1, 200), np.full(200, 2.0)]), declared=200) == []


def test_overshoot_at_the_start_is_healthy() -> None:
    """A first transient, before anything was learnt, is none."""
    loss = 3 + 4 * np.exp(-T / 30) + 25 * np.exp(-(((T - 8) / 4) ** 2)) + 0.02 * NOISE
    assert found(loss) == []


def test_a_spike_that_passes_is_no_divergence() -> None:
    """A few high losses are a matter of the other tests."""
    loss = 1.5 + 2 * np.exp(-T / 40) + 0.02 * NOISE
    loss[250:253] += 3
    assert found(loss) == []


def test_without_a_loss() -> None:
    """No loss, or NaN only, is nothing to go by."""
    assert said(MemoryTable([0, 1], {"lr": [1.0, 1.0]}), ENDS) == []
    assert found(np.full(50, np.nan)) == []
